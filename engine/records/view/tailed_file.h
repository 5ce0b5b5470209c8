#pragma once

// The lines of a file that others append to, cut back, or replace: metrics.jsonl and logs of a run that goes.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace stagecraft {

class TailedFile {
 public:
  explicit TailedFile(std::string path) : path_(std::move(path)) {}

  enum class Found : std::uint8_t {
    all,    ///< every whole line that is there has been read
    part,   ///< there are more: `most_bytes` were read
    other,  ///< what was read is not there any more (cut back, replaced, removed): the next call begins anew
  };
  /// Calls `line` for each whole line behind those read before, without its newline. Lines above kLongest are
  /// left out. A file that is missing or cannot be read has no lines.
  Found read(std::size_t most_bytes, const std::function<void(std::string_view)>& line);

  [[nodiscard]] std::uint64_t position() const { return position_; }  ///< behind the last line read
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }        ///< of the file, as last seen
  [[nodiscard]] double modified() const { return modified_; }         ///< seconds since 1970; 0: no file

  static constexpr std::size_t kLongest = std::size_t{1} << 16U;

 private:
  [[nodiscard]] bool is_the_same(const class StoredFile& file) const;
  Found begin_anew();

  std::string path_;
  std::uint64_t position_ = 0;
  std::uint64_t bytes_ = 0;
  double modified_ = 0;
  std::string before_;  ///< the bytes before position_: if others stand there, the file was cut back
};

}  // namespace stagecraft
