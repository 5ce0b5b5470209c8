#include "models/data/token_file.h"

#include "base/file_kind.h"
#include "base/files.h"
#include "base/fingerprint.h"
#include "base/input_path.h"
#include "base/near_path.h"
#include "base/text.h"
#include "models/data/data_file.h"
#include "models/data/known_format.h"
#include "models/data/token_width.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace stagecraft {
namespace {

constexpr std::uint64_t kLlmCHeader = 256 * sizeof(std::int32_t);

/// Where the parts of Megatron's index begin.
constexpr std::uint64_t kMagic = 9, kVersion = 8, kType = 1;
constexpr std::uint64_t kCounts = kMagic + kVersion + kType;
constexpr std::uint64_t kLengths = kCounts + 16;

/// Tokens of one width, widened.
template <class Token>
void widen(const std::vector<char>& bytes, std::int64_t* tokens) {
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Token)) {
    Token token = 0;
    std::memcpy(&token, bytes.data() + at, sizeof token);
    *tokens++ = token;
  }
}

}  // namespace

TokenFile::TokenFile(const std::string& path, const Plain& plain, InputPlace place)
    : place_(std::move(place)) {
  FileFacts facts;
  const bool there = !storage().facts(path, /*follow=*/true, facts) && facts.is_file();
  path_ = there || path.ends_with(".bin") ? path : path + ".bin";
  file_ = open(path_, bytes_);
  const std::string stem = path_.ends_with(".bin") ? path_.substr(0, path_.size() - 4) : path_;
  index_path_ = stem + ".idx";
  if (!storage().facts(index_path_, /*follow=*/true, facts) && facts.is_file()) {
    read_index();
  } else {
    read_header(plain);
    if (kind_ == Kind::plain && path_ != path) {
      throw wrong(
          path_, fmt::format("is named without its ending, as files of Megatron are, and there is no {} that "
                             "says what it holds; name the whole path if it is a plain file",
                             index_path_));
    }
  }
}

InputError TokenFile::wrong(const std::string& path, const std::string& what) const {
  return data_file_error(place_, path, what);
}

StoredFilePtr TokenFile::open(const std::string& path, std::uint64_t& bytes) const {
  require_there(path, place_);
  StoredFilePtr file;
  FileFacts facts;
  std::error_code error = storage().open(path, OpenFor::reading, file);
  if (!error) error = file->facts(facts);
  if (error) throw wrong(path, not_opened(path, error));
  if (facts.is_folder()) throw wrong(path, fmt::format("is {}; expected a file", kind_of_folder(path)));
  if (!facts.is_file()) throw wrong(path, "is no file");
  bytes = facts.bytes;
  return file;
}

void TokenFile::read_at(const StoredFile& file, const std::string& path, std::uint64_t offset, void* to,
                        std::size_t bytes) const {
  for (std::size_t done = 0; done < bytes;) {
    std::size_t got = 0;
    const std::error_code error =
        file.read_at(offset + done, static_cast<char*>(to) + done, bytes - done, got);
    if (error) throw wrong(path, "cannot be read: " + error.message());
    if (got == 0) throw wrong(path, fmt::format("ends at byte {}: it was cut off", offset + done));
    done += got;
  }
}

void TokenFile::read_header(const Plain& plain) {
  struct Known {
    std::uint32_t magic, version;
    std::uint64_t width;
  };
  constexpr std::array kKnown{Known{20240520, 1, 2}, Known{20240801, 7, 4}};
  std::array<std::uint32_t, 3> header{};
  read_at(*file_, path_, 0, header.data(), std::min<std::uint64_t>(bytes_, sizeof header));
  width_ = static_cast<std::uint64_t>(plain.bits) / 8;
  for (const Known& known : kKnown) {
    if (__builtin_bswap32(header[0]) == known.magic) throw wrong(path_, "is llm.c's in big-endian order");
    if (header[0] != known.magic) continue;
    if (header[1] != known.version) {
      throw wrong(path_,
                  fmt::format("is llm.c's of version {}; expected version {}", header[1], known.version));
    }
    if (bytes_ < kLlmCHeader) {
      throw wrong(path_, fmt::format("has {} bytes, llm.c's header alone takes {}", bytes_, kLlmCHeader));
    }
    kind_ = Kind::llm_c;
    width_ = known.width;
    first_byte_ = kLlmCHeader;
  }
  if (kind_ == Kind::plain) refuse_misread(plain);
  const std::uint64_t bytes = bytes_ - first_byte_;
  count_ = static_cast<std::int64_t>(bytes / width_);
  if (bytes % width_ != 0) {
    throw wrong(path_, fmt::format("{} bytes of tokens are no multiple of {}", bytes, width_));
  }
  if (kind_ == Kind::llm_c && header[2] != static_cast<std::uint64_t>(count_)) {
    throw wrong(path_, fmt::format("its header promises {} tokens, it has {}", header[2], count_));
  }
}

void TokenFile::refuse_misread(const Plain& plain) const {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 16U;
  std::vector<std::uint64_t> begins{0};
  if (bytes_ > 3 * kPiece) begins = {0, bytes_ / 2, bytes_ - kPiece};
  TokenPieces pieces;
  for (const std::uint64_t begin : begins) {
    std::string& piece = pieces.emplace_back((begins.size() == 1 ? bytes_ : kPiece) / 8 * 8, '\0');
    read_at(*file_, path_, begin / 8 * 8, piece.data(), piece.size());
  }
  const std::string_view beginning = std::string_view(pieces.front()).substr(0, kFormatBytes);
  if (const std::string other = known_format(beginning); !other.empty()) {
    throw wrong(path_, fmt::format("holds no plain tokens, it is {}", other));
  }
  if (std::all_of(pieces.begin(), pieces.end(), [](const auto& piece) { return is_plain_text(piece); })) {
    throw wrong(path_,
                "holds no tokens, it is text; data of type \"text\" reads it, and stagecraft-tokenize makes "
                "tokens of it");
  }
  constexpr std::int64_t kMostOf16 = std::int64_t{1} << 16U;
  if (plain.bits == 16 && plain.vocabulary > kMostOf16) {
    throw wrong(path_,
                fmt::format("its tokens have 16 bits, as long as \"bits\" does not say otherwise, and a "
                            "vocabulary of {} needs more than those hold; write \"bits\": 32 if they have",
                            plain.vocabulary));
  }
  if (const std::string misread = misread_width(pieces, plain.bits, plain.vocabulary); !misread.empty()) {
    throw wrong(path_, misread);
  }
}

void TokenFile::read_index() {
  kind_ = Kind::megatron;
  index_ = open(index_path_, index_bytes_);
  std::array<char, kLengths> header{};
  if (index_bytes_ < kLengths) throw wrong(index_path_, "is too short for an index of Megatron");
  read_at(*index_, index_path_, 0, header.data(), header.size());
  const auto number = [&](std::uint64_t at) {
    std::uint64_t value = 0;
    std::memcpy(&value, header.data() + at, sizeof value);
    return value;
  };
  if (std::memcmp(header.data(), "MMIDIDX\0\0", kMagic) != 0 || number(kMagic) != 1) {
    throw wrong(index_path_, "is no index of Megatron, version 1");
  }
  switch (header[kMagic + kVersion]) {
    case 1:
      width_ = 1;
      break;
    case 4:
      width_ = 4, is_signed_ = true;
      break;
    case 5:
      width_ = 8, is_signed_ = true;
      break;
    case 8:
      width_ = 2;
      break;
    default:
      throw wrong(index_path_, fmt::format("has tokens of Megatron's type {}; expected 1, 4, 5 or 8: uint8, "
                                           "int32, int64 or uint16",
                                           int{header[kMagic + kVersion]}));
  }
  const std::uint64_t sequences = number(kCounts), ends = number(kCounts + 8);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 48U;
  if (sequences > kMost || ends > kMost || ends < 1 || index_bytes_ < kLengths + sequences * 12 + ends * 8) {
    throw wrong(index_path_, fmt::format("{} bytes are too few for its {} sequences and {} ends of documents",
                                         index_bytes_, sequences, ends));
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(ends) - 1;
  // Sequences lie one behind the other, as Megatron's builder writes them: then the file is one stream.
  constexpr std::int64_t kPiece = 1 << 16;
  std::vector<std::int32_t> lengths(kPiece);
  std::vector<std::int64_t> begins(kPiece);
  std::uint64_t next = 0;
  for (std::int64_t first = 0; first < sequences_; first += kPiece) {
    const auto here = static_cast<std::size_t>(std::min(kPiece, sequences_ - first));
    const auto begin = static_cast<std::uint64_t>(first);
    read_at(*index_, index_path_, kLengths + begin * 4, lengths.data(), here * 4);
    read_at(*index_, index_path_, kLengths + sequences * 4 + begin * 8, begins.data(), here * 8);
    for (std::size_t i = 0; i < here; ++i) {
      if (lengths[i] < 0 || static_cast<std::uint64_t>(begins[i]) != next) {
        throw wrong(index_path_, fmt::format("sequence {} does not lie behind the one before it",
                                             first + static_cast<std::int64_t>(i)));
      }
      next += static_cast<std::uint64_t>(lengths[i]) * width_;
    }
  }
  if (next != bytes_) {
    throw wrong(path_, fmt::format("has {} bytes, its index says {}", bytes_, next));
  }
  count_ = static_cast<std::int64_t>(bytes_ / width_);
}

std::string TokenFile::kind() const {
  const std::uint64_t bits = 8 * width_;
  if (kind_ == Kind::megatron)
    return fmt::format("Megatron's, of {} bits, {}", bits, plural(documents_, "document"));
  return fmt::format("{}of {} bits", kind_ == Kind::llm_c ? "llm.c's, " : "plain, ", bits);
}

void TokenFile::read(std::int64_t first, std::int64_t count, std::int64_t* tokens) const {
  STAGECRAFT_CHECK(first >= 0 && count >= 0 && first + count <= count_, "tokens are read within the file");
  std::vector<char> bytes(static_cast<std::size_t>(count) * width_);
  read_at(*file_, path_, first_byte_ + static_cast<std::uint64_t>(first) * width_, bytes.data(),
          bytes.size());
  if (width_ == 1) widen<std::uint8_t>(bytes, tokens);
  if (width_ == 2) widen<std::uint16_t>(bytes, tokens);
  if (width_ == 4 && is_signed_) widen<std::int32_t>(bytes, tokens);
  if (width_ == 4 && !is_signed_) widen<std::uint32_t>(bytes, tokens);
  if (width_ == 8) widen<std::int64_t>(bytes, tokens);
}

std::pair<std::int64_t, std::int64_t> TokenFile::document(std::int64_t number) const {
  STAGECRAFT_CHECK(number >= 0 && number < documents_, "documents are asked for by their number");
  const auto sequences = static_cast<std::uint64_t>(sequences_);
  const std::uint64_t begins = kLengths + sequences * 4, ends = begins + sequences * 8;
  std::array<std::int64_t, 2> within{};  // its first sequence, and that of the next
  read_at(*index_, index_path_, ends + static_cast<std::uint64_t>(number) * 8, within.data(), sizeof within);
  if (within[0] < 0 || within[1] < within[0] || within[1] > sequences_) {
    throw wrong(index_path_, fmt::format("document {} has the sequences from {} up to {}, of {}", number,
                                         within[0], within[1], sequences_));
  }
  const auto token = [&](std::int64_t sequence) {
    if (sequence == sequences_) return count_;
    std::int64_t begin = 0;
    read_at(*index_, index_path_, begins + static_cast<std::uint64_t>(sequence) * 8, &begin, sizeof begin);
    return begin / static_cast<std::int64_t>(width_);
  };
  const std::int64_t first = token(within[0]);
  return {first, token(within[1]) - first};
}

std::string TokenFile::fingerprint() const {
  constexpr std::uint64_t kEnd = std::uint64_t{1} << 16U;
  Fingerprint fingerprint;
  fingerprint.add(fmt::format("{} {} {} {}", bytes_, first_byte_, width_, documents_));
  std::vector<char> bytes(std::min(kEnd, bytes_));
  for (const std::uint64_t from : {std::uint64_t{0}, bytes_ - bytes.size()}) {
    read_at(*file_, path_, from, bytes.data(), bytes.size());
    fingerprint.add({bytes.data(), bytes.size()});
  }
  return fingerprint.text();
}

}  // namespace stagecraft
