// What @jupyter/builder adds to its own settings, so that two folders give the same bytes.

module.exports = {
  // Other numbers of modules come from their paths: that of the entry from the whole path of this folder.
  optimization: { moduleIds: 'natural' }
};
