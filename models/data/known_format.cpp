#include "models/data/known_format.h"

#include <algorithm>
#include <array>
#include <utility>

namespace stagecraft {
namespace {

using namespace std::string_view_literals;

constexpr std::array kBeginnings{
    std::pair{"\x93NUMPY"sv, "a .npy array; data of type \"arrays\" reads a folder of such files"},
    std::pair{"PK\x03\x04"sv, "a zip archive (.npz and .pt are such); unpack it, or save its arrays as .npy"},
    std::pair{"PK\x05\x06"sv, "an empty zip archive"},
    std::pair{"\x1f\x8b\x08"sv, "compressed by gzip; unpack it with gunzip"},
    std::pair{"\x28\xb5\x2f\xfd"sv, "compressed by zstd; unpack it with unzstd"},
    std::pair{"\xfd"
              "7zXZ\0"sv,
              "compressed by xz; unpack it with unxz"},
    std::pair{"7z\xbc\xaf\x27\x1c"sv, "a 7z archive; unpack it"},
    std::pair{"\x04\x22\x4d\x18"sv, "compressed by lz4; unpack it with unlz4"},
    std::pair{"MMIDIDX\0\0"sv, "Megatron's index; name the file of tokens beside it, which ends in .bin"},
    std::pair{"TNTIDX\0\0"sv,
              "an older index of Megatron; name a file of tokens whose index it can write now"},
    std::pair{"PAR1"sv, "a Parquet table; write its columns as .npy, or its text as .jsonl"},
    std::pair{"ARROW1\0\0"sv, "an Arrow table; write its columns as .npy, or its text as .jsonl"},
    std::pair{"\xff\xff\xff\xff"
              "\x78\x01\0\0"sv,
              "an Arrow stream; write its columns as .npy, or its text as .jsonl"},
    std::pair{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file; write its arrays as .npy"},
    std::pair{"SQLite format 3\0"sv, "an SQLite database; write its columns as .npy, or its text as .jsonl"},
    std::pair{"MATLAB 5.0 MAT-file"sv, "a file of MATLAB; write its arrays as .npy"},
    std::pair{"%PDF-"sv, "a PDF file; take its text out first"},
    std::pair{"\x89PNG\r\n\x1a\n"sv, "a PNG image; stagecraft-images makes arrays of a folder of images"},
    std::pair{"\xff\xd8\xff\xe0"sv, "a JPEG image; stagecraft-images makes arrays of a folder of images"},
    std::pair{"\xff\xd8\xff\xe1"sv, "a JPEG image; stagecraft-images makes arrays of a folder of images"},
    std::pair{"version https://git-lfs"sv, "a pointer of Git LFS; fetch the file itself with git lfs pull"},
    std::pair{"version http://git-media"sv, "a pointer of Git LFS; fetch the file itself with git lfs pull"},
};

bool begins_bzip2(std::string_view bytes) {
  return bytes.size() >= 10 && bytes.starts_with("BZh") && bytes[3] >= '1' && bytes[3] <= '9' &&
         bytes.substr(4, 6) == "1AY&SY";
}

/// Python's pickle of protocol 2 to 5, which says so and goes on with an opcode.
bool begins_pickle(std::string_view bytes) {
  return bytes.size() >= 4 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 &&
         (bytes[1] < 4 ? "(}]c\x8a"sv : "\x95\x8c"sv).find(bytes[2]) != std::string_view::npos;
}

/// The length of a header of JSON, and that.
bool begins_safetensors(std::string_view bytes) {
  return bytes.size() > 10 && bytes.substr(4, 4) == "\0\0\0\0"sv && bytes.substr(8, 2) == "{\""sv;
}

bool begins_tar(std::string_view bytes) { return bytes.size() >= 262 && bytes.substr(257, 5) == "ustar"; }

bool begins_page(std::string_view bytes) {
  return bytes.starts_with("<!DOCTYPE") || bytes.starts_with("<!doctype") || bytes.starts_with("<html");
}

}  // namespace

std::string known_format(std::string_view beginning) {
  for (const auto& [bytes, what] : kBeginnings) {
    if (beginning.starts_with(bytes)) return what;
  }
  if (begins_bzip2(beginning)) return "compressed by bzip2; unpack it with bunzip2";
  if (begins_pickle(beginning)) return "a pickle of Python; save its arrays as .npy or safetensors";
  if (begins_safetensors(beginning)) return "a safetensors file; data of type \"arrays\" reads it";
  if (begins_tar(beginning)) return "a tar archive; unpack it";
  if (begins_page(beginning)) return "a web page, as a server sends in place of a file; fetch it again";
  return "";
}

bool is_plain_text(std::string_view bytes) {
  constexpr std::size_t kLeast = 64;
  return bytes.size() >= kLeast && std::all_of(bytes.begin(), bytes.end(), [](char c) {
           return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
         });
}

}  // namespace stagecraft
