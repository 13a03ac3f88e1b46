# sm120_add_kernel(NAME [HOST host.cpp] [DEVICE kernel.cuh])
#
# Builds what kernels/NAME installs beside its Python files:
#   _host            a pybind11 module: the device sources compiled for the CPU through the SIMT shim
#   NAME.fatbin      the device sources compiled by nvcc, when there is one; loaded through cuda-bindings, so nothing links CUDA
#
# SM120_CUDA            AUTO (a fatbin when nvcc is found), ON (nvcc is required) or OFF
# SM120_CUDA_ARCHS      which devices the fatbin is for; see sm120_gencode

set(SM120_CUDA AUTO CACHE STRING "Build fatbins: AUTO, ON or OFF")
set(SM120_CUDA_ARCHS 120a CACHE STRING "Architectures of the fatbins, such as 120a")
set_property(CACHE SM120_CUDA PROPERTY STRINGS AUTO ON OFF)

include(${CMAKE_CURRENT_LIST_DIR}/Sm120Gencode.cmake)

if(NOT SM120_CUDA STREQUAL "OFF")
  find_program(SM120_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(SM120_NVCC)
    sm120_gencode(SM120_GENCODE ${SM120_CUDA_ARCHS})
    message(STATUS "sm120: fatbins for ${SM120_CUDA_ARCHS} with ${SM120_NVCC}")
  elseif(SM120_CUDA STREQUAL "ON")
    message(FATAL_ERROR "sm120: SM120_CUDA=ON needs nvcc, which is neither on PATH nor under CUDA_HOME")
  else()
    message(STATUS "sm120: no nvcc, so no fatbins; the host modules are built all the same")
  endif()
endif()

function(sm120_add_kernel name)
  cmake_parse_arguments(kernel "" "HOST;DEVICE" "" ${ARGN})
  if(kernel_UNPARSED_ARGUMENTS OR NOT (kernel_HOST OR kernel_DEVICE))
    message(FATAL_ERROR "sm120_add_kernel(${name}): needs HOST <file> or DEVICE <file>, got ${ARGN}")
  endif()
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/kernels/${name})
  set(shim ${CMAKE_CURRENT_SOURCE_DIR}/kernels/_lib/simt/host_shim.h)

  if(kernel_HOST)
    pybind11_add_module(${name}_host MODULE ${folder}/${kernel_HOST})
    set_target_properties(${name}_host PROPERTIES OUTPUT_NAME _host CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
                          LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${name})
    # the same rules as kernels/_lib/host_library.py: the shim first, no contraction, no symbol shared between modules
    target_compile_options(${name}_host PRIVATE "SHELL:-include \"${shim}\"" -O2 -ffp-contract=off -fno-gnu-unique)
    target_include_directories(${name}_host PRIVATE ${folder})
    install(TARGETS ${name}_host LIBRARY DESTINATION sm120/kernels/${name})
  endif()

  if(kernel_DEVICE AND SM120_NVCC)
    set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${name}/${name}.fatbin)
    file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${name})  # nvcc -MF does not make it
    add_custom_command(
      OUTPUT ${fatbin}
      COMMAND ${SM120_NVCC} -x cu -O3 -std=c++17 -lineinfo --fatbin ${SM120_GENCODE} -MD -MF ${fatbin}.d
              -o ${fatbin} ${folder}/${kernel_DEVICE}
      DEPENDS ${folder}/${kernel_DEVICE}
      DEPFILE ${fatbin}.d
      COMMENT "nvcc ${name}.fatbin"
      VERBATIM)
    add_custom_target(${name}_fatbin ALL DEPENDS ${fatbin})
    install(FILES ${fatbin} DESTINATION sm120/kernels/${name})
  endif()
endfunction()
