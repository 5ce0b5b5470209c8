#include "partitioner/plan/decoder_parts.h"

#include "base/json.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <string>
#include <vector>

using namespace stagecraft;

namespace {

/// Llama's, as stagecraft-capture names them.
std::vector<std::string> llama(int blocks, bool halves = false) {
  std::vector<std::string> names{"model.embed_tokens"};
  for (int i = 0; i < blocks; ++i) {
    names.push_back(fmt::format("model.layers.{}", i));
    if (halves) names.push_back(fmt::format("model.layers.{}.mlp", i));
  }
  names.insert(names.end(), {"model.norm", "lm_head", "loss"});
  return names;
}

/// Stages that begin at the layers `cuts` of `layers`, each on the ranks of its entry.
Plan plan_of(const std::vector<int>& cuts, int layers, const std::vector<std::vector<int>>& ranks) {
  Plan plan;
  for (std::size_t s = 0; s < ranks.size(); ++s) {
    StagePlan stage{s == 0 ? 0 : cuts[s - 1], s < cuts.size() ? cuts[s] : layers, {}};
    for (const int rank : ranks[s]) stage.ranks.emplace_back(rank);
    plan.stages.push_back(stage);
  }
  return plan;
}

const InputPlace kPlace{"plan.json", ""};

std::string megatron(const Plan& plan, const std::vector<std::string>& names) {
  return megatron_layout(decoder_parts(plan, names, kPlace, kPlace), kPlace);
}

/// What Megatron-LM makes of a layout without repeats: the letters of each stage.
std::vector<std::string> stages_of(const std::string& layout) {
  std::vector<std::string> stages{""};
  for (const char c : layout) {
    if (c == '|')
      stages.emplace_back();
    else
      stages.back() += c;
  }
  return stages;
}

}  // namespace

TEST_CASE("a decoder's stages as Megatron-LM and torchtitan name them", "[decoder_parts]") {
  const Plan plan = plan_of({3, 5}, 8, {{0}, {1}, {2}});
  CHECK(megatron(plan, llama(4)) == "Ett|tt|L");
  CHECK(torchtitan_parts(decoder_parts(plan, llama(4), kPlace, kPlace)) ==
        R"([["tok_embeddings","layers.0","layers.1"],["layers.2","layers.3"],["norm","lm_head"]])");
  // Each block in halves; the embedding alone; a library's own names.
  CHECK(megatron(plan_of({1, 5}, 12, {{0}, {1}, {2}}), llama(4, true)) == "E|tt|ttL");
  CHECK(megatron(plan_of({3}, 7, {{0}, {1}}), {"embedding", "block0.attention", "block0.feed_forward",
                                               "block1.attention", "block1.feed_forward", "head", "loss"}) ==
        "Et|tL");
  CHECK(megatron(plan_of({}, 8, {{0}}), llama(4)) == "EttttL");
}

TEST_CASE("every block is named once, in order, wherever stages are cut", "[decoder_parts]") {
  const std::vector<std::string> names = llama(30);
  for (int first = 1; first < 31; ++first) {
    for (int second = first + 1; second <= 31; ++second) {
      const Plan plan = plan_of({first, second}, 34, {{0}, {1}, {2}});
      const std::vector<std::string> stages = stages_of(megatron(plan, names));
      REQUIRE(stages.size() == 3);
      CHECK(stages[0] + stages[1] + stages[2] == "E" + std::string(30, 't') + "L");
      CHECK(stages[0].size() == to_size(first));
      int block = 0;
      for (const Json& stage : Json::parse(torchtitan_parts(decoder_parts(plan, names, kPlace, kPlace)))) {
        for (const Json& name : stage)
          if (name.get<std::string>().starts_with("layers."))
            CHECK(name == fmt::format("layers.{}", block++));
      }
      CHECK(block == 30);
    }
  }
}

TEST_CASE("stages in a loop, in a V, and with replicas", "[decoder_parts]") {
  const Plan loop = plan_of({2, 3, 4}, 8, {{0}, {1}, {0}, {1}});
  CHECK(megatron(loop, llama(4)) == "Et|t|t|tL");
  CHECK(decoder_parts(loop, llama(4), kPlace, kPlace).ranks == 2);
  const Plan v = plan_of({2, 3, 4}, 8, {{0}, {1}, {1}, {0}});
  CHECK(decoder_parts(v, llama(4), kPlace, kPlace).on_ranks == StagesOnRanks::v);
  CHECK_THROWS_WITH(megatron(v, llama(4)),
                    Catch::Matchers::ContainsSubstring("plan.json: /stages: lie on ranks in a V"));
  CHECK(megatron(plan_of({3}, 8, {{0, 2}, {1, 3}}), llama(4)) == "Ett|ttL");
  CHECK_THROWS_WITH(
      megatron(plan_of({3}, 8, {{0, 2}, {1}}), llama(4)),
      Catch::Matchers::ContainsSubstring("plan.json: /stages/1/ranks: has 1, and stage 0 has 2"));
  CHECK_THROWS_WITH(megatron(plan_of({2, 3, 4}, 8, {{0}, {0}, {1}, {1}}), llama(4)),
                    Catch::Matchers::ContainsSubstring("neither in a loop"));
}

TEST_CASE("what is no row of blocks, or not cut between them, is refused", "[decoder_parts]") {
  const auto cut = [](int at, const std::vector<std::string>& names) {
    return megatron(plan_of({at}, static_cast<int>(names.size()), {{0}, {1}}), names);
  };
  CHECK_THROWS_WITH(cut(2, llama(4, true)),
                    Catch::Matchers::ContainsSubstring(
                        "/stages/1/first_layer: layer model.layers.0.mlp begins a stage within block 0"));
  CHECK_THROWS_WITH(cut(6, llama(4)),
                    Catch::Matchers::ContainsSubstring("layer lm_head begins a stage within the head"));
  CHECK_THROWS_WITH(cut(1, {"wte", "drop", "h.0", "h.1", "head"}),
                    Catch::Matchers::ContainsSubstring("within the embedding"));
  CHECK_THROWS_WITH(cut(1, {"features", "classifier", "loss"}),
                    Catch::Matchers::ContainsSubstring("no layer has a number"));
  CHECK_THROWS_WITH(cut(1, {"h.0", "h.1", "loss"}),
                    Catch::Matchers::ContainsSubstring("layer h.0 comes first"));
  CHECK_THROWS_WITH(cut(1, {"wte", "h.0", "h.1"}),
                    Catch::Matchers::ContainsSubstring("layer h.1 is the last"));
  CHECK_THROWS_WITH(cut(1, {"wte", "h.0", "h.2", "loss"}),
                    Catch::Matchers::ContainsSubstring("layer h.2 comes where block 1"));
  CHECK_THROWS_WITH(cut(1, {"wte", "h.0", "pool", "h.1", "loss"}),
                    Catch::Matchers::ContainsSubstring("layer pool lies between"));
  CHECK_THROWS_WITH(
      cut(1, {"shared", "encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1", "loss"}),
      Catch::Matchers::ContainsSubstring("has layers decoder.block.* and encoder.block.*"));
  CHECK_THROWS_WITH(megatron(plan_of({2}, 5, {{0}, {1}}), llama(4)),
                    Catch::Matchers::ContainsSubstring("/stages: has 5 layers, and the profile 8"));
}
