"""What the tests of several packages use."""
