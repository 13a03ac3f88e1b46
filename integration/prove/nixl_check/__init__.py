"""Which installed NIXL, on which queue, keeps its promises on this machine: one matrix of real transfers."""
