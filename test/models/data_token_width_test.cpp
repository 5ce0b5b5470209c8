// Plain token files do not say how wide their tokens are: no width is read as another.

#include "base/files.h"
#include "models/data/tokens.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;
using TokenList = std::vector<std::int64_t>;

std::string bytes_of(const TokenList& tokens, int bits) {
  std::string bytes;
  for (const std::int64_t token : tokens) {
    bytes.append(reinterpret_cast<const char*>(&token), static_cast<std::size_t>(bits / 8));  // little-endian
  }
  return bytes;
}

/// As frequent as words are: the smaller the more.
TokenList drawn_tokens(std::int64_t vocabulary, std::size_t count) {
  std::mt19937_64 random(count);
  std::uniform_real_distribution<double> uniform(0, 1);
  TokenList tokens(count);
  for (std::int64_t& token : tokens) {
    token = static_cast<std::int64_t>(std::pow(static_cast<double>(vocabulary), uniform(random))) - 1;
  }
  return tokens;
}

/// "accepted", or the refusal of opening the file.
std::string width_refusal(const test::ScratchFolder& folder, const std::string& bytes, int bits,
                          std::int64_t vocabulary) {
  write_file_atomically(folder.path("t.bin"), bytes);
  TokensDataConfig config;
  config.path = folder.path("t.bin");
  config.sequence = 4;
  config.vocabulary = vocabulary;
  config.bits = bits;
  try {
    (void)open_tokens(config, {"run.json", "/data"})->inputs(Split::train, {0, 1});
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("no width of tokens is read as another", "[data]") {
  const test::ScratchFolder folder;
  for (const std::int64_t vocabulary : {100, 256, 50'257, 128'256, 262'144}) {
    for (const std::size_t count : {48, 1'000, 200'000}) {
      const TokenList tokens = drawn_tokens(vocabulary, count);
      for (const int width : {8, 16, 32, 64}) {
        if (width == 8 && vocabulary > 256) continue;
        if (width == 16 && vocabulary > 65'536) continue;
        const std::string bytes = bytes_of(tokens, width);
        for (const int bits : {16, 32}) {
          const std::string said = width_refusal(folder, bytes, bits, vocabulary);
          INFO(fmt::format("vocabulary {}, {} tokens of {} bits as {}: {}", vocabulary, count, width, bits,
                           said));
          CHECK((said == "accepted") == (width == bits));
          if (width != bits)
            CHECK_THAT(said, ContainsSubstring("run.json: /data/path: ") && ContainsSubstring("t.bin"));
          if (bits == 16 && width == 32) CHECK_THAT(said, ContainsSubstring("write \"bits\": 32"));
          if (bits == 32 && width == 16) CHECK_THAT(said, ContainsSubstring("bits"));
          if (width == 64 && vocabulary <= 65'536) CHECK_THAT(said, ContainsSubstring("int64"));
        }
      }
    }
  }
}

TEST_CASE("tokens of 16 bits with many zeros and few values are what they are", "[data]") {
  const test::ScratchFolder folder;
  std::vector<TokenList> files{TokenList(100, 0), TokenList(100, 1)};
  for (const std::int64_t vocabulary : {2, 3, 4, 5, 20}) files.push_back(drawn_tokens(vocabulary, 5'000));
  TokenList padded = drawn_tokens(1'000, 40);  // and zeros behind
  padded.resize(100'000, 0);
  files.push_back(padded);
  TokenList pairs;  // a number and a flag
  for (const std::int64_t token : drawn_tokens(100, 500)) pairs.insert(pairs.end(), {token, token % 3});
  files.push_back(pairs);
  TokenList few(40, 0);
  for (std::size_t i = 0; i < 20; i += 2) few[i] = 7;
  files.push_back(few);
  for (const TokenList& tokens : files)
    CHECK(width_refusal(folder, bytes_of(tokens, 16), 16, 1'000) == "accepted");
}

TEST_CASE("the beginning, the middle and the end of a long file are looked at", "[data]") {
  const test::ScratchFolder folder;
  const TokenList wide = drawn_tokens(50'000, 100'000);
  const std::string zeros(1U << 20U, '\0'), narrow = bytes_of(wide, 32);
  CHECK(width_refusal(folder, zeros + zeros, 16, 50'000) == "accepted");
  for (const std::string& bytes : {narrow + zeros, zeros + narrow, zeros + narrow + zeros}) {
    CHECK_THAT(width_refusal(folder, bytes, 16, 50'000), ContainsSubstring("look like ones of 32 bits"));
  }
}

TEST_CASE("a prefix of Megatron without its index, and headers of llm.c, are no guess", "[data]") {
  const test::ScratchFolder folder;
  TokensDataConfig config;
  config.sequence = 4;
  config.vocabulary = 1'000;
  const auto said = [&](const std::string& path) -> std::string {
    config.path = folder.path(path);
    try {
      (void)open_tokens(config, {"run.json", "/data"});
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  const TokenList tokens = drawn_tokens(1'000, 400);
  write_file_atomically(folder.path("m.bin"), bytes_of(tokens, 16));
  CHECK_THAT(said("m"), ContainsSubstring("there is no " + folder.path("m.idx")) &&
                            ContainsSubstring("name the whole path"));
  CHECK(said("m.bin") == "accepted");
  write_file_atomically(folder.path("m.txt"),
                        "what is in a name, said a file of tokens that was none, and then it was read");
  CHECK_THAT(said("m.txt"), ContainsSubstring("it is text") && ContainsSubstring("stagecraft-tokenize"));

  const auto header = [](std::uint32_t magic, std::uint32_t version, std::uint32_t count) {
    std::vector<std::uint32_t> numbers(256, 0);
    numbers[0] = magic, numbers[1] = version, numbers[2] = count;
    return std::string(reinterpret_cast<const char*>(numbers.data()), 1024);
  };
  const auto llm_c = [&](const std::string& bytes) {
    write_file_atomically(folder.path("l.bin"), bytes);
    return said("l.bin");
  };
  CHECK(llm_c(header(20240520, 1, 400) + bytes_of(tokens, 16)) == "accepted");
  CHECK(llm_c(header(20240801, 7, 400) + bytes_of(tokens, 32)) == "accepted");
  CHECK(said("l") == "accepted");  // the header says what it is
  CHECK_THAT(llm_c(header(20240520, 2, 400) + bytes_of(tokens, 16)),
             ContainsSubstring("version 2; expected version 1"));
  CHECK_THAT(llm_c(header(__builtin_bswap32(20240520), 1, 400) + bytes_of(tokens, 16)),
             ContainsSubstring("big-endian"));
  CHECK_THAT(llm_c(header(20240520, 1, 4).substr(0, 100)), ContainsSubstring("header alone takes 1024"));
}

}  // namespace
}  // namespace stagecraft
