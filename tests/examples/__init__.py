"""The examples, run as their pages say."""
