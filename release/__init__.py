"""Parts of a release: wheels, and the kernels as a package of Hugging Face's hub."""
