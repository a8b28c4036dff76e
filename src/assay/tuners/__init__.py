"""Auto-tuners: Assay's own, Triton's, Helion's, and any command."""
