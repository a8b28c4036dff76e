"""Two branches of native sparse attention, sliding and compressed, each by a mask and by flash kernels."""
