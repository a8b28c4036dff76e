"""Who chooses a configuration of a workload: Assay's own pick, the auto-tuners of Triton and Helion, any command."""
