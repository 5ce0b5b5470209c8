#pragma once

// Small data files for the data tests, written into a folder that goes away with them.

#include "base/error.h"
#include "models/data/dataset.h"
#include "test/support/catch.h"

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

namespace stagecraft::test {

class DataFolder {
 public:
  DataFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "stagecraft-data-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~DataFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

  [[nodiscard]] std::string path(const std::string& name = "") const { return (path_ / name).string(); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
  void write_gz(const std::string& name, const std::string& bytes) const {
    gzFile file = gzopen(path(name).c_str(), "wb");
    REQUIRE(file != nullptr);
    REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) ==
            static_cast<int>(bytes.size()));
    REQUIRE(gzclose(file) == Z_OK);
  }
  [[nodiscard]] std::string read(const std::string& name) const {
    std::ifstream file(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::filesystem::path path_;
};

inline std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24U), static_cast<char>(value >> 16U), static_cast<char>(value >> 8U),
          static_cast<char>(value)};
}

/// An IDX file of unsigned bytes.
inline std::string idx(const std::vector<std::uint32_t>& sizes, const std::string& data) {
  std::string bytes = big_endian(0x0800 + static_cast<std::uint32_t>(sizes.size()));
  for (const std::uint32_t size : sizes) bytes += big_endian(size);
  return bytes + data;
}

/// What opening this data throws; fails the test when it does not.
inline std::string refusal(const DataConfig& config) {
  try {
    (void)open_dataset(config, {"run.json", "/data"});
  } catch (const InputError& error) {
    return error.what();
  }
  FAIL("opened");
  return "";
}

}  // namespace stagecraft::test
