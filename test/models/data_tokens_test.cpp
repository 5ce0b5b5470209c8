// Token files that other tools wrote, as samples.

#include "base/files.h"
#include "models/data/tokens.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

#include <ATen/ATen.h>

#include <fstream>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;

const InputPlace kTokenData{"run.json", "/data"};

std::string stored(const std::string& name) { return STAGECRAFT_TEST_DATA "/tokens/" + name; }

TokensDataConfig config_of(const std::string& path, std::int64_t sequence) {
  TokensDataConfig config;
  config.path = path;
  config.sequence = sequence;
  config.vocabulary = path.find("llama3") == std::string::npos ? 1'000 : 100'001;
  return config;
}

std::string refusal_of(const TokensDataConfig& config) {
  try {
    (void)open_tokens(config, kTokenData);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

at::Tensor tokens(std::initializer_list<std::int64_t> list) {
  return at::tensor(std::vector<std::int64_t>(list), at::kLong);
}

/// Copies the files of Megatron and changes bytes of the index.
std::string with_index(const test::ScratchFolder& folder, std::size_t at, const std::string& bytes) {
  write_file_atomically(folder.path("m.bin"), read_file(stored("megatron16.bin")));
  std::string index = read_file(stored("megatron16.idx"));
  index.replace(at, bytes.size(), bytes);
  write_file_atomically(folder.path("m.idx"), index);
  return folder.path("m");
}

TEST_CASE("plain files, llm.c's and Megatron's are read as their tools wrote them", "[data]") {
  for (const char* file : {"nanogpt.bin", "llmc_gpt2.bin", "llmc_llama3.bin"}) {
    INFO(file);
    const auto data = open_tokens(config_of(stored(file), 7), kTokenData);
    CHECK(data->size(Split::train) == 2);
    CHECK(data->size(Split::validation) == 0);
    CHECK(at::equal(data->inputs(Split::train, {1, 0}),
                    at::stack({tokens({12, 13, 14, 15, 16, 300, 17}), tokens({5, 6, 7, 8, 9, 10, 11})})));
    const std::int64_t last = std::string(file) == "llmc_llama3.bin" ? 100'000 : 18;
    CHECK(at::equal(data->targets(Split::train, {1})[0], tokens({13, 14, 15, 16, 300, 17, last})));
  }
  for (const char* file : {"megatron16", "megatron32.bin"}) {
    INFO(file);
    const auto data = open_tokens(config_of(stored(file), 4), kTokenData);
    CHECK(data->size(Split::train) == 2);  // a stream, whatever the documents
    CHECK(at::equal(data->inputs(Split::train, {1})[0], tokens({9, 10, 11, 12})));
    CHECK(at::equal(data->targets(Split::train, {1})[0], tokens({10, 11, 12, 13})));
  }
}

TEST_CASE("a document per sample is cut off or padded, and says what counts", "[data]") {
  TokensDataConfig config = config_of(stored("megatron16.bin"), 4);
  config.documents = Documents::padded;
  config.pad = 99;
  const auto data = open_tokens(config, kTokenData);
  REQUIRE(data->size(Split::train) == 4);
  CHECK(data->sample().targets == Targets::none);
  CHECK(at::equal(data->inputs(Split::train, {0, 1, 3}),
                  at::stack({tokens({5, 6, 7, 99}), tokens({8, 9, 10, 11}), tokens({15, 16, 99, 99})})));
  CHECK(at::equal(data->field(Split::train, "labels", {3})[0], tokens({15, 16, -100, -100})));
  CHECK(at::equal(data->field(Split::train, "attention_mask", {2, 1}),
                  at::stack({tokens({1, 0, 0, 0}), tokens({1, 1, 1, 1})})));
  config.path = stored("nanogpt.bin");
  CHECK_THAT(refusal_of(config),
             ContainsSubstring("/data/path") && ContainsSubstring("does not say where documents begin"));
}

TEST_CASE("documents of one row are kept apart by positions that begin again", "[data]") {
  TokensDataConfig config = config_of(stored("megatron16.bin"), 4);  // of 3, 6, 1 and 2 tokens
  config.documents = Documents::separated;
  auto data = open_tokens(config, kTokenData);
  REQUIRE(data->size(Split::train) == 3);  // no token behind the last row is needed
  CHECK(data->sample().targets == Targets::none);
  CHECK(at::equal(data->inputs(Split::train, {0, 2}),
                  at::stack({tokens({5, 6, 7, 8}), tokens({13, 14, 15, 16})})));
  CHECK(at::equal(data->field(Split::train, "position_ids", {0, 1, 2}),
                  at::stack({tokens({0, 1, 2, 0}), tokens({0, 1, 2, 3}), tokens({0, 0, 0, 1})})));
  CHECK(
      at::equal(data->field(Split::train, "labels", {0, 1, 2}),
                at::stack({tokens({5, 6, 7, -100}), tokens({9, 10, 11, 12}), tokens({13, -100, -100, 16})})));
  config.separator = 7;
  CHECK_THAT(refusal_of(config), ContainsSubstring("says by its .idx where documents begin"));

  config.path = stored("nanogpt.bin");
  config.sequence = 5;
  config.validation = 0.5;
  data = open_tokens(config, kTokenData);
  REQUIRE(data->size(Split::train) == 2);
  CHECK(at::equal(data->field(Split::train, "position_ids", {0})[0], tokens({0, 1, 2, 0, 1})));
  CHECK(at::equal(data->field(Split::train, "labels", {0})[0], tokens({5, 6, 7, -100, 9})));
  CHECK(at::equal(data->inputs(Split::validation, {0})[0], tokens({15, 16, 300, 17, 18})));
  CHECK(at::equal(data->field(Split::validation, "position_ids", {0})[0], tokens({0, 1, 2, 3, 4})));
  const std::string before = data->fingerprint();
  config.separator = 8;
  CHECK(open_tokens(config, kTokenData)->fingerprint() != before);
  config.separator.reset();
  CHECK_THAT(refusal_of(config), ContainsSubstring("use \"separator\", the token that ends one"));
}

TEST_CASE("validation is the samples at the end, or a file of its own", "[data]") {
  TokensDataConfig config = config_of(stored("nanogpt.bin"), 2);
  config.validation = 0.3;
  auto data = open_tokens(config, kTokenData);
  CHECK(data->size(Split::train) == 5);
  CHECK(data->size(Split::validation) == 2);
  CHECK(at::equal(data->inputs(Split::validation, {0})[0], tokens({15, 16})));
  CHECK(at::equal(data->targets(Split::validation, {1})[0], tokens({17, 18})));
  const std::string whole = data->fingerprint();
  config.validation = 0;
  config.validation_path = stored("llmc_llama3.bin");
  config.vocabulary = 100'001;
  config.path = stored("llmc_gpt2.bin");
  data = open_tokens(config, kTokenData);
  CHECK(data->size(Split::train) == 7);
  CHECK(at::equal(data->targets(Split::validation, {6})[0], tokens({17, 100'000})));
  CHECK(data->fingerprint() != whole);
}

TEST_CASE("what is wrong with a token file is said, and where", "[data]") {
  const test::ScratchFolder folder;
  CHECK_THAT(refusal_of(config_of(folder.path("none.bin"), 4)), ContainsSubstring("none.bin: no such file"));
  CHECK_THAT(refusal_of(config_of(stored("nanogpt.bin"), 15)),
             ContainsSubstring("has 15 tokens, a sample takes 16"));
  write_file_atomically(folder.path("odd.bin"), "abc");
  CHECK_THAT(refusal_of(config_of(folder.path("odd.bin"), 1)),
             ContainsSubstring("3 bytes of tokens are no multiple of 2"));
  std::string cut = read_file(stored("llmc_gpt2.bin"));
  cut.resize(cut.size() - 4);
  write_file_atomically(folder.path("cut.bin"), cut);
  CHECK_THAT(refusal_of(config_of(folder.path("cut.bin"), 2)),
             ContainsSubstring("promises 15 tokens, it has 13"));
  CHECK_THAT(refusal_of(config_of(with_index(folder, 0, "X"), 2)),
             ContainsSubstring("is no index of Megatron"));
  CHECK_THAT(refusal_of(config_of(with_index(folder, 17, "\7"), 2)), ContainsSubstring("Megatron's type 7"));
  CHECK_THAT(refusal_of(config_of(with_index(folder, 18, "\x7f"), 2)),
             ContainsSubstring("too few for its 127 sequences"));
  CHECK_THAT(refusal_of(config_of(with_index(folder, 34, "\4"), 2)),
             ContainsSubstring("does not lie behind"));
  CHECK_THAT(refusal_of(config_of(with_index(folder, 50, "\4"), 2)), ContainsSubstring("its index says"));

  TokensDataConfig config = config_of(with_index(folder, 102, "\x70"), 2);  // the first end of a document
  config.documents = Documents::padded;
  const auto data = open_tokens(config, kTokenData);
  CHECK_THROWS_WITH(data->inputs(Split::train, {0}),
                    ContainsSubstring("document 0 has the sequences from 0 up to 112"));

  config = config_of(stored("nanogpt.bin"), 7);
  config.vocabulary = 300;
  CHECK_THROWS_WITH(open_tokens(config, kTokenData)->inputs(Split::train, {1}),
                    ContainsSubstring("token 12 is 300, outside of the vocabulary of 300"));
}

TEST_CASE("a token file that is cut off while it is read is an error, not a crash", "[data]") {
  const test::ScratchFolder folder;
  write_file_atomically(folder.path("t.bin"), read_file(stored("nanogpt.bin")));
  const auto data = open_tokens(config_of(folder.path("t.bin"), 7), kTokenData);
  std::ofstream(folder.path("t.bin"), std::ios::trunc).flush();
  CHECK_THROWS_WITH(data->inputs(Split::train, {0}), ContainsSubstring("ends at byte 0: it was cut off"));
}

}  // namespace
}  // namespace stagecraft
