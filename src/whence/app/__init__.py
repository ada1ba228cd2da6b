"""The web page: ask a model why, in a browser. It calls only what users of the package can call, too."""
