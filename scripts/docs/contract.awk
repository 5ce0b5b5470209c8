# A header's contract is its first comment: Doxygen shows it as that of the file.
begun == 0 && /^\/\// { print "/// @file"; begun = 1 }
begun == 1 && !/^\/\// { begun = 2 }
begun == 1 { sub(/^\/\//, "///") }
{ print }
