"""What a release is made of: wheels, and the kernels as a package of Hugging Face's hub."""
