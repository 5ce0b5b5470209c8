#include "test/fuzz/scratch_folder.h"

#include "test/fuzz/judge.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace stagecraft::fuzz {

ScratchFolder::ScratchFolder()
    : folder_((std::filesystem::temp_directory_path() / "stagecraft-fuzz-XXXXXX").string()) {
  require(::mkdtemp(folder_.data()) != nullptr, "the temporary directory can be written to");
  folder_ += '/';
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string ScratchFolder::write(const std::string& name, const std::string& bytes) const {
  std::ofstream out(path(name), std::ios::binary);
  out << bytes;
  out.close();
  require(out.good(), "the temporary directory has room");
  return path(name);
}

std::string ScratchFolder::read(const std::string& name) const {
  std::ifstream in(path(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void ScratchFolder::remove(const std::string& name) const {
  std::error_code ignored;
  std::filesystem::remove(path(name), ignored);
}

}  // namespace stagecraft::fuzz
