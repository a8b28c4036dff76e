"""Two branches of native sparse attention, sliding and compressed, each with a mask and with flash kernels."""
