#pragma once

// Files of tokens as the usual tools write them, read where they are asked for: a file of any size takes no
// memory. (They are not mapped: a file that somebody cuts off would end the process.)
//
// - plain: tokens of 16 or 32 bits one after another, as nanoGPT's prepare.py writes them;
// - llm.c's, with a header of 256 numbers that says how wide they are;
// - Megatron's FILE.bin with FILE.idx beside it, which says where documents begin.

#include "base/error.h"
#include "base/storage.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// Reading is thread-safe. Errors are InputErrors at `place` that name the file.
class TokenFile {
 public:
  /// What a config says of a plain file, in which nothing says it.
  struct Plain {
    int bits = 16;                ///< of a token, 16 or 32
    std::int64_t vocabulary = 0;  ///< its tokens are below
  };
  /// `path`: of Megatron's files with or without ".bin". Refuses what cannot be a plain file of such tokens: of
  /// another format, of another width by what its beginning, middle and end look like.
  TokenFile(const std::string& path, const Plain& plain, InputPlace place);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// "Megatron's, of 16 bits", for people.
  [[nodiscard]] std::string kind() const;
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// Tokens first, first + 1, ... of the file.
  void read(std::int64_t first, std::int64_t count, std::int64_t* tokens) const;

  /// 0: the file does not say where they begin.
  [[nodiscard]] std::int64_t documents() const { return documents_; }
  /// Its first token, and how many it has.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> document(std::int64_t number) const;

  /// Of its size and of both ends: a file of gigabytes is not read for it.
  [[nodiscard]] std::string fingerprint() const;

 private:
  enum class Kind : std::uint8_t { plain, llm_c, megatron };

  [[nodiscard]] InputError wrong(const std::string& path, const std::string& what) const;
  [[nodiscard]] StoredFilePtr open(const std::string& path, std::uint64_t& bytes) const;
  void read_at(const StoredFile& file, const std::string& path, std::uint64_t offset, void* to,
               std::size_t bytes) const;
  void read_header(const Plain& plain);
  void refuse_misread(const Plain& plain) const;
  void read_index();

  std::string path_, index_path_;
  InputPlace place_;
  StoredFilePtr file_, index_;
  Kind kind_ = Kind::plain;
  std::uint64_t bytes_ = 0, index_bytes_ = 0;
  std::uint64_t first_byte_ = 0;  ///< of the tokens
  std::uint64_t width_ = 2;       ///< bytes of a token
  bool is_signed_ = false;
  std::int64_t count_ = 0, documents_ = 0, sequences_ = 0;
};

}  // namespace stagecraft
