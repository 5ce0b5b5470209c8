#include "partitioner/plan/decoder_parts.h"

#include "base/json.h"
#include "partitioner/plan/one_pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>

namespace stagecraft {
namespace {

struct Numbered {
  std::string before;  ///< "model.layers."
  int number = 0;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// By the first component of a name that ends in a number.
std::optional<Numbered> numbered(std::string_view name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    std::size_t digits = end;
    while (digits > begin && is_digit(name[digits - 1])) --digits;
    if (digits < end && end - digits < 9)
      return Numbered{std::string(name.substr(0, digits)),
                      std::stoi(std::string(name.substr(digits, end - digits)))};
    begin = end + 1;
  }
  return std::nullopt;
}

/// The layers of a model: [0, first) are the embedding, [last, size) the head, and those between are of `block`.
struct Row {
  int first = 0, last = 0;
  std::vector<int> block;  ///< of each layer; -1 for one of no block
  int blocks = 0;
};

Row row_of(const std::vector<std::string>& names, const InputPlace& place) {
  std::map<std::string, std::set<int>> numbers;
  for (const std::string& name : names)
    if (const auto found = numbered(name)) numbers[found->before].insert(found->number);
  const auto most = std::max_element(numbers.begin(), numbers.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  const auto refuse = [&](const std::string& why) {
    return InputError(place,
                      fmt::format("{}: expected the layers of a decoder, an embedding, blocks whose names "
                                  "are numbered (model.layers.0, ...) and a head",
                                  why));
  };
  if (most == numbers.end()) throw refuse("no layer has a number in its name");
  Row row;
  row.first = -1;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto found = numbered(names[i]);
    const bool of_block = found && found->before == most->first;
    if (found && !of_block && numbers[found->before].size() > 1) {
      throw refuse(fmt::format("has layers {}* and {}*", most->first, found->before));
    }
    row.block.push_back(of_block ? found->number : -1);
    if (!of_block) continue;
    if (row.first < 0) row.first = static_cast<int>(i);
    if (row.last != 0 && row.last != static_cast<int>(i))
      throw refuse(fmt::format("layer {} lies between blocks", names[i - 1]));
    if (found->number != row.blocks && found->number != row.blocks - 1)
      throw refuse(fmt::format("layer {} comes where block {} is expected", names[i], row.blocks));
    row.blocks = found->number + 1;
    row.last = static_cast<int>(i) + 1;
  }
  if (row.first == 0) throw refuse(fmt::format("layer {} comes first", names.front()));
  if (row.last == static_cast<int>(names.size()))
    throw refuse(fmt::format("layer {} is the last", names.back()));
  return row;
}

/// How the stages of one pipeline lie on its ranks.
void set_ranks(DecoderParts& parts, const Plan& pipeline, const InputPlace& place) {
  const std::size_t stages = pipeline.stages.size();
  std::size_t ranks = 0;
  for (const StagePlan& stage : pipeline.stages) ranks = std::max(ranks, stage.ranks.front().index() + 1);
  bool loop = stages % ranks == 0, v = stages == 2 * ranks;
  for (std::size_t s = 0; s < stages; ++s) {
    const std::size_t on = pipeline.stages[s].ranks.front().index();
    loop = loop && on == s % ranks;
    v = v && on == std::min(s, stages - 1 - s);
  }
  if (!loop && !v) {
    throw InputError(
        {place.file, "/stages"},
        "lie on ranks neither in a loop (stage s on rank s mod ranks) nor in a V, and other frameworks "
        "know no other way");
  }
  parts.ranks = static_cast<int>(ranks);
  parts.on_ranks = loop ? StagesOnRanks::loop : StagesOnRanks::v;
}

}  // namespace

DecoderParts decoder_parts(const Plan& plan, const std::vector<std::string>& names, const InputPlace& place,
                           const InputPlace& of_names) {
  if (plan.layers() != static_cast<int>(names.size())) {
    throw InputError(
        {place.file, "/stages"},
        fmt::format("has {} layers, and the profile {}: it is of another model, or of other layers "
                    "of it",
                    plan.layers(), names.size()));
  }
  const Row row = row_of(names, of_names);
  DecoderParts parts;
  set_ranks(parts, one_pipeline(plan, place), place);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const auto [first, last] = std::pair(plan.stages[s].first_layer, plan.stages[s].last_layer);
    const auto parted = [&](const std::string& what) {
      return InputError(
          {place.file, fmt::format("/stages/{}/first_layer", s)},
          fmt::format("layer {} begins a stage within {}: there stages are cut between blocks alone; "
                      "plan whole blocks (stagecraft-capture --layers 'model.layers.*')",
                      names[to_size(first)], what));
    };
    if (first > 0 && first < row.first) throw parted("the embedding");
    if (first > row.last) throw parted("the head");
    const int block = row.block[to_size(first)];
    if (block >= 0 && first > 0 && row.block[to_size(first) - 1] == block)
      throw parted(fmt::format("block {}", block));
    DecoderPart part;
    part.embedding = first == 0;
    part.head = last == static_cast<int>(names.size());
    for (int layer = std::max(first, row.first); layer < std::min(last, row.last); ++layer) {
      if (part.blocks == 0) part.first_block = row.block[to_size(layer)];
      part.blocks = row.block[to_size(layer)] - part.first_block + 1;
    }
    parts.stages.push_back(part);
  }
  return parts;
}

std::string megatron_layout(const DecoderParts& parts, const InputPlace& place) {
  if (parts.on_ranks == StagesOnRanks::v) {
    throw InputError(
        {place.file, "/stages"},
        "lie on ranks in a V, and Megatron-LM's in a loop: plan interleaved_1f1b, or a schedule of one "
        "stage per rank");
  }
  std::string layout;
  for (const DecoderPart& part : parts.stages) {
    if (!layout.empty()) layout += '|';
    if (part.embedding) layout += 'E';
    layout.append(to_size(part.blocks), 't');
    if (part.head) layout += 'L';
  }
  return layout;
}

std::string torchtitan_parts(const DecoderParts& parts) {
  Json stages = Json::array();
  for (const DecoderPart& part : parts.stages) {
    Json names = Json::array();
    if (part.embedding) names.push_back("tok_embeddings");
    for (int block = part.first_block; block < part.first_block + part.blocks; ++block)
      names.push_back(fmt::format("layers.{}", block));
    if (part.head) names.insert(names.end(), {"norm", "lm_head"});
    stages.push_back(std::move(names));
  }
  return stages.dump();
}

}  // namespace stagecraft
