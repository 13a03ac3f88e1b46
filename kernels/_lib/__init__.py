"""What kernels run with: the capability table, contracts of tensors, the one probe for a device."""
