"""Every call of the API, by what it is about: one function makes one call."""
