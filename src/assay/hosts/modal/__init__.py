"""The provider Modal: a machine is a sandbox, and its line is the SDK's own way to start programs in it."""
