# Installation: headers, the libraries, and a package that find_package(fovea) finds.
