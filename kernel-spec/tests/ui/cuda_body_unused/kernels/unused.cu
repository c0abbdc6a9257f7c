// Nobody wants this.
