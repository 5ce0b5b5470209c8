#include "models/tensors/safetensors.h"

#include "base/error.h"
#include "base/files.h"
#include "models/tensors/safetensors_writer.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <unistd.h>

using namespace stagecraft;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("safetensors." + std::to_string(::getpid()));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path / name).string(); }
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string with_header(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

}  // namespace

TEST_CASE("safetensors: every dtype, shape and text comes back", "[safetensors]") {
  const Folder folder;
  const std::string path = folder.file("all.safetensors");
  std::vector<std::pair<std::string, at::Tensor>> tensors{{"bool", at::ones({3}, at::kBool)},
                                                          {"matrix", at::randn({3, 5})},
                                                          {"transposed", at::randn({4, 2}, at::kDouble).t()},
                                                          {"scalar", at::scalar_tensor(7, at::kLong)},
                                                          {"empty", at::empty({0, 4})},
                                                          {"half", at::randn({2}).to(at::kBFloat16)},
                                                          {"bytes", at::arange(9, at::kByte)}};
  write_safetensors(path, tensors, {{"step", "12"}, {"note", "ein \"Zitat\""}});
  const SafetensorsFile file = read_safetensors(path);
  REQUIRE(file.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK(at::equal(file.tensor(name, tensor.sizes(), tensor.scalar_type()), tensor));
  }
  CHECK(file.metadata == std::map<std::string, std::string>{{"step", "12"}, {"note", "ein \"Zitat\""}});
  CHECK_THROWS_WITH(file.tensor("missing", {1}, at::kFloat),
                    ContainsSubstring(path) && ContainsSubstring("missing"));
  CHECK_THROWS_WITH(file.tensor("matrix", {5, 3}, at::kFloat),
                    ContainsSubstring("[5, 3]") && ContainsSubstring("[3, 5] of F32"));
  CHECK_THROWS_WITH(file.tensor("matrix", {3, 5}, at::kDouble), ContainsSubstring("F64"));
}

TEST_CASE("safetensors: the bytes are those of the format", "[safetensors]") {
  const Folder folder;
  const std::string path = folder.file("a.safetensors");
  write_safetensors(path, {{"a", at::ones({2}, at::kByte)}});
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  CHECK(contents(path) == with_header(header + std::string((8 - header.size() % 8) % 8, ' '), "\1\1"));
}

TEST_CASE("safetensors: a damaged file is refused by name", "[safetensors]") {
  const Folder folder;
  const std::string path = folder.file("bad.safetensors");
  const auto message = [&](const std::string& bytes) -> std::string {
    write_file_atomically(path, bytes);
    try {
      (void)read_safetensors(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  const auto entry = [](const std::string& name, const std::string& rest) {
    return "\"" + name + "\":{\"dtype\":\"U8\"," + rest + "}";
  };
  CHECK_THROWS_AS(read_safetensors(folder.file("none")), InputError);
  CHECK_THAT(message(""), ContainsSubstring(path));
  CHECK_THAT(message(std::string(8, '\xff')), ContainsSubstring("truncated"));
  CHECK_THAT(message(with_header("[]", "")), ContainsSubstring("not a JSON object"));
  CHECK_THAT(message(with_header("{", "")), ContainsSubstring("JSON"));
  CHECK_THAT(message(with_header("{" + entry("x", R"("shape":[4],"data_offsets":[0,4])") + "}", "abc")),
             ContainsSubstring("\"x\"") && ContainsSubstring("truncated"));
  CHECK_THAT(message(with_header("{" + entry("x", R"("shape":[4],"data_offsets":[0,3])") + "}", "abc")),
             ContainsSubstring("takes 4 bytes"));
  CHECK_THAT(message(with_header("{" + entry("x", R"("shape":[2],"data_offsets":[0,2])") + "}", "abc")),
             ContainsSubstring("2 of 3"));
  CHECK_THAT(message(with_header("{" + entry("x", R"("shape":[2],"data_offsets":[0,2])") + "," +
                                     entry("y", R"("shape":[2],"data_offsets":[1,3])") + "}",
                                 "abc")),
             ContainsSubstring("\"y\"") && ContainsSubstring("overlapping"));
  CHECK_THAT(message(with_header("{" + entry("x", R"("shape":[1],"data_offsets":[1,2])") + "}", "ab")),
             ContainsSubstring("gap"));
  CHECK_THAT(message(with_header(
                 "{" + entry("x", R"("shape":[0,4611686018427387903,8],"data_offsets":[0,0])") + "}", "")),
             ContainsSubstring("its shape is too large"));
  CHECK_THAT(message(with_header("{" + entry("x", R"("shape":[-1],"data_offsets":[0,2])") + "}", "ab")),
             ContainsSubstring("at least 0"));
  CHECK_THAT(message(with_header(
                 "{" + entry("x", R"("shape":[4611686018427387903,16],"data_offsets":[0,2])") + "}", "ab")),
             ContainsSubstring("too large"));
  CHECK_THAT(message(with_header(R"({"x":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", "a")),
             ContainsSubstring("unknown dtype") && ContainsSubstring("F4"));
  CHECK_THAT(message(with_header(R"({"x":{"dtype":"U8","shape":[1]}})", "a")),
             ContainsSubstring("data_offsets"));
  // Cut anywhere, a good file is never taken for whole.
  write_safetensors(path, {{"a", at::randn({2, 2})}, {"b", at::randn({3})}});
  const std::string whole = contents(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO(size);
    CHECK(message(whole.substr(0, size)) != "accepted");
  }
}
