// Files that are something else than a data set reads are refused by what they are, whatever reads them.

#include "models/data/arrays.h"
#include "models/data/idx.h"
#include "models/data/known_format.h"
#include "models/data/text.h"
#include "models/data/tokens.h"
#include "test/models/data_files.h"

#include <string>
#include <sys/stat.h>
#include <tuple>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;
using namespace std::string_literals;
using test::DataFolder;

/// How files begin, and what a refusal calls them.
const std::vector<std::pair<std::string, std::string>> kBeginnings{
    {"\x93NUMPY\x01\0"s, ".npy array"},
    {"PK\x03\x04\x14\0"s, "zip archive"},
    {"\x28\xb5\x2f\xfd"s, "zstd"},
    {"\xfd"
     "7zXZ\0"s,
     "xz"},
    {"BZh91AY&SY"s, "bzip2"},
    {"7z\xbc\xaf\x27\x1c"s, "7z"},
    {"\x04\x22\x4d\x18"s, "lz4"},
    {"MMIDIDX\0\0"s, "Megatron's index"},
    {"TNTIDX\0\0"s, "index of Megatron"},
    {"PAR1\x15\x04"s, "Parquet"},
    {"ARROW1\0\0"s, "Arrow"},
    {"\x89HDF\r\n\x1a\n"s, "HDF5"},
    {"SQLite format 3\0"s, "SQLite"},
    {"%PDF-1.7\n"s, "PDF"},
    {"\x89PNG\r\n\x1a\n"s, "PNG"},
    {"\xff\xd8\xff\xe0"s, "JPEG"},
    {"version https://git-lfs.github.com/spec/v1\n"s, "Git LFS"},
    {"\x80\x04\x95\x10\0\0\0\0\0\0\0"s, "pickle"},
    {"\x80\x02}q\0"s, "pickle"},
    {"\x40\0\0\0\0\0\0\0{\"a\":"s, "safetensors"},
};

/// That beginning, and some bytes that any kind could have.
std::string file_beginning(const std::string& beginning) {
  std::string bytes = beginning;
  for (int i = 0; bytes.size() < 4096; ++i) bytes += static_cast<char>(i * 37 % 251);
  return bytes;
}

template <class Config, class Open>
std::string format_refusal(const Config& config, const Open& open) {
  try {
    (void)open(config, InputPlace{"run.json", "/data"});
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("every reader says what a file of another format is", "[data]") {
  for (const auto& [beginning, what] : kBeginnings) {
    INFO(what);
    const DataFolder folder;
    const std::string bytes = file_beginning(beginning);
    CHECK_THAT(known_format(bytes), ContainsSubstring(what));
    folder.write("file", bytes);
    const auto refused = [&](const std::string& why) {
      INFO(why);
      CHECK_THAT(why, ContainsSubstring("run.json: /data") && ContainsSubstring(folder.path()) &&
                          ContainsSubstring(what));
    };
    TokensDataConfig tokens;
    tokens.path = folder.path("file");
    tokens.vocabulary = 60'000;
    tokens.sequence = 4;
    refused(format_refusal(tokens, open_tokens));
    for (const char* kind : {"bytes", "characters"}) {
      refused(format_refusal(TextDataConfig{folder.path("file"), kind, 4}, open_text));
    }
    if (what != "safetensors") refused(format_refusal(ArraysDataConfig{folder.path("file")}, open_arrays));
    const DataFolder only;  // that one file
    only.write("inputs.bin", bytes);
    CHECK_THAT(format_refusal(ArraysDataConfig{only.path()}, open_arrays),
               ContainsSubstring("has no NAME.npy; its inputs.bin is") && ContainsSubstring(what));
    if (what != ".npy array") {
      folder.write("inputs.npy", bytes);
      refused(format_refusal(ArraysDataConfig{folder.path()}, open_arrays));
    }
    folder.write("train-images-idx3-ubyte", bytes);
    refused(format_refusal(IdxDataConfig{folder.path()}, open_idx));
  }
}

TEST_CASE("data that only resembles another format is read", "[data]") {
  CHECK(known_format("").empty());
  CHECK(known_format("PK").empty());
  CHECK(known_format("BZh is how it begins").empty());
  CHECK(known_format(std::string(600, '\0')).empty());
  CHECK(known_format("\x80\x04 and on"s).empty());
  const DataFolder folder;
  folder.write("page.html", "<!DOCTYPE html><html>a page is text</html>");
  CHECK(format_refusal(TextDataConfig{folder.path("page.html"), "bytes", 4, 0}, open_text) == "accepted");
}

TEST_CASE("a mark of UTF-8 before a text is no token, and UTF-16 is refused", "[data]") {
  const DataFolder folder;
  folder.write("plain.txt", "hello, world");
  folder.write("marked.txt", "\xef\xbb\xbfhello, world");
  for (const char* kind : {"bytes", "characters"}) {
    const auto plain = open_text({folder.path("plain.txt"), kind, 4, 0}, {});
    const auto marked = open_text({folder.path("marked.txt"), kind, 4, 0}, {});
    CHECK(at::equal(plain->inputs(Split::train, {0, 1}), marked->inputs(Split::train, {0, 1})));
    CHECK(plain->fingerprint() == marked->fingerprint());
    for (const std::string& mark : {"\xff\xfe"s, "\xfe\xff"s}) {
      folder.write("wide.txt", mark + "h\0e\0l\0l\0o\0h\0e\0l\0l\0o\0"s);
      CHECK_THAT(format_refusal(TextDataConfig{folder.path("wide.txt"), kind, 4, 0}, open_text),
                 ContainsSubstring("UTF-16") && ContainsSubstring("iconv"));
    }
  }
}

TEST_CASE("text in UTF-16 or UTF-32 without its mark is refused", "[data]") {
  const DataFolder folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "A line of text, and another.\n";
  for (const auto& [name, bytes, at] :
       {std::tuple{"UTF-16LE", 2, 0}, {"UTF-16BE", 2, 1}, {"UTF-32LE", 4, 0}, {"UTF-32BE", 4, 3}}) {
    std::string wide(text.size() * static_cast<std::size_t>(bytes), '\0');
    for (std::size_t i = 0; i < text.size(); ++i)
      wide[i * static_cast<std::size_t>(bytes) + static_cast<std::size_t>(at)] = text[i];
    folder.write("wide.txt", wide);
    for (const char* kind : {"bytes", "characters"}) {
      CHECK_THAT(format_refusal(TextDataConfig{folder.path("wide.txt"), kind, 4, 0}, open_text),
                 ContainsSubstring("wide.txt: looks like text in " + std::string(name)) &&
                     ContainsSubstring("iconv -f " + std::string(name)));
    }
  }
  // Bytes of other files stay what they are.
  folder.write("zeros", std::string(4096, '\0'));
  folder.write("some", text + std::string(100, '\0') + text);
  for (const char* name : {"zeros", "some"})
    CHECK(format_refusal(TextDataConfig{folder.path(name), "bytes", 4, 0}, open_text) == "accepted");
}

TEST_CASE("a data file that is a folder, a pipe or a device is said to be one", "[data]") {
  const DataFolder folder;
  const auto refused = [&](const std::string& path, const char* why) {
    CHECK_THAT(format_refusal(TextDataConfig{path, "bytes", 4, 0}, open_text),
               ContainsSubstring(path + ": " + why));
  };
  refused(folder.path(), "is a folder; expected a file");
  refused("/dev/null", "is a pipe or a device; expected a file");
  REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  refused(folder.path("pipe"), "is a pipe or a device; expected a file");
}

TEST_CASE("MNIST's files are found by the names that copies of them have", "[data]") {
  const DataFolder folder;
  for (const char* part : {"train", "t10k"}) {
    folder.write(part + "-images.idx3-ubyte"s, test::idx({2, 1, 2}, "abcd"));
    folder.write_gz(part + "-labels.idx1-ubyte.gz"s, test::idx({2}, "\1\0"s));
  }
  CHECK(open_idx({folder.path()}, {})->size(Split::train) == 2);
  const DataFolder none;
  CHECK_THAT(format_refusal(IdxDataConfig{none.path()}, open_idx),
             ContainsSubstring("train-images-idx3-ubyte"));
}

}  // namespace
}  // namespace stagecraft
