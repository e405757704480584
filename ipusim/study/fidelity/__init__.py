"""Every published row against its prediction."""
