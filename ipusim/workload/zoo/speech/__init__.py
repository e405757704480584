"""Speech and recurrent networks."""
