"""The host: transfers and loaders."""
