# sm120_gencode(OUT ARCH...) turns architectures into nvcc's -gencode flags, and refuses what would build something else.
#
# Exact spellings only. A plain "120" compiles, without the instructions that only the 120a target has; "12.0", "12.0a",
# "120f" and "+PTX" mean different things to different build systems, and lists that mix them lose entries silently.

function(sm120_gencode out)
  set(flags "")
  foreach(arch IN LISTS ARGN)
    if(NOT arch MATCHES "^(90a|100a|103a|120a|121a)$")
      message(FATAL_ERROR "sm120: SM120_CUDA_ARCHS has '${arch}', needs exact targets such as 120a "
                          "(not 120, 12.0, 12.0a, 120f or +PTX)")
    endif()
    list(APPEND flags -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  if(NOT flags)
    message(FATAL_ERROR "sm120: SM120_CUDA_ARCHS is empty, needs at least one target such as 120a")
  endif()
  set(${out} ${flags} PARENT_SCOPE)
endfunction()
