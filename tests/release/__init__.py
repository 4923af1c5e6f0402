"""What is shipped: its contents, its metadata, and the tests against what a user installs."""
