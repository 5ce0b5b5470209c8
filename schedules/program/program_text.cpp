#include "schedules/program/program_text.h"

#include "base/json.h"
#include "base/nearest.h"
#include "base/text.h"
#include "schedules/program/action_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

namespace stagecraft {
namespace {

constexpr std::string_view kFirstLine = "stagecraft program 1";

/// Group sizes, runs of equal ones as COUNTxSIZE.
std::string group_text(const std::vector<int>& sizes) {
  std::string text;
  for (std::size_t i = 0; i < sizes.size();) {
    std::size_t end = i;
    while (end < sizes.size() && sizes[end] == sizes[i]) ++end;
    text += end - i > 1 ? fmt::format(" {}x{}", end - i, sizes[i]) : fmt::format(" {}", sizes[i]);
    i = end;
  }
  return text;
}

std::string stage_list(const std::vector<StageId>& stages, const char* between) {
  std::vector<std::int32_t> numbers;
  for (const StageId stage : stages) numbers.push_back(stage.value);
  return fmt::format("{}", fmt::join(numbers, between));
}

std::string header_text(const ProgramHeader& header) {
  std::string text =
      fmt::format("{}\nschedule {}\nkind {}\nstages", kFirstLine, header.schedule, enum_name(header.kind));
  for (const auto& replicas : header.placement.ranks) {
    text += ' ';
    for (const Rank& rank : replicas)
      text += fmt::format("{}{}", &rank == replicas.data() ? "" : ",", rank.value);
  }
  text += "\ngroups" + group_text(header.group_sizes) + "\n";
  if (!header.also_load.empty()) text += fmt::format("loads {}\n", stage_list(header.also_load, " "));
  if (!header.ties.empty()) text += "ties";
  for (const std::vector<StageId>& holders : header.ties)
    text += fmt::format(" {}", stage_list(holders, ","));
  if (!header.ties.empty()) text += '\n';
  if (!header.skips.empty()) text += "skips";
  for (const Skip& skip : header.skips) text += fmt::format(" {}>{}", skip.from.value, skip.to.value);
  if (!header.skips.empty()) text += '\n';
  if (header.gradient_from.value > 0) text += fmt::format("gradient_from {}\n", header.gradient_from.value);
  return text;
}

std::string token_of(const Action& action, const std::vector<StageId>& held) {
  const ActionFields fields = fields_of(action.op);
  std::string token;
  if (fields.stage && (held.size() != 1 || held.front() != action.stage)) {
    token += std::to_string(action.stage.value);
  }
  token += letter_of(action.op);
  token += std::to_string(fields.micro_batch ? action.micro_batch.value : action.group.value);
  if (fields.tie && action.tie.value > 0) token += fmt::format(".{}", action.tie.value);
  if (action.version != default_version(action)) token += fmt::format("v{}", action.version.value);
  return token;
}

/// A line's words, with the place to blame.
class Line {
 public:
  Line(std::string_view text, const std::string& file, int number)
      : place_{file, fmt::format("line {}", number)} {
    text = take_until(text, "#");
    while (!(text = trimmed(text)).empty()) {
      if (static_cast<std::int64_t>(words_.size()) > kMaxActions + 2)
        refuse_length();  // before it takes the memory
      words_.push_back(take_until(text, " \t\r"));
    }
  }

  [[nodiscard]] const std::vector<std::string_view>& words() const { return words_; }
  [[nodiscard]] const InputPlace& place() const { return place_; }

  [[noreturn]] void refuse(const std::string& what) const { throw InputError(place_, what); }
  [[noreturn]] void refuse_length() const {
    refuse(fmt::format("expected at most {} actions in a program", kMaxActions));
  }

 private:
  InputPlace place_;
  std::vector<std::string_view> words_;
};

class ProgramTextReader {
 public:
  explicit ProgramTextReader(const std::string& file) : file_(file) {}

  ScheduleProgram read(std::string_view text) {
    int number = 0;
    bool first = true;
    while (!text.empty()) {
      const Line line(take_until(text, "\n"), file_, ++number);
      if (line.words().empty()) continue;
      if (first) {
        check_first(line);
        first = false;
      } else if (line.words()[0] == "rank") {
        read_rank(line);
      } else {
        read_header(line);
      }
    }
    const InputPlace end{file_, fmt::format("line {}", number)};
    if (first) throw InputError(end, fmt::format("expected \"{}\", found an empty file", kFirstLine));
    if (program_.ranks.empty()) throw InputError(end, "no \"rank\" line before the end of the file");
    for (std::size_t r = 0; r < seen_.size(); ++r) {
      if (!seen_[r]) throw InputError(end, fmt::format("rank {} has no line", r));
    }
    return std::move(program_);
  }

 private:
  static void check_first(const Line& line) {
    const std::string joined = fmt::format("{}", fmt::join(line.words(), " "));
    if (joined != kFirstLine) {
      line.refuse(
          fmt::format("expected \"{}\" as the first line, found {}", kFirstLine, json::brief(joined)));
    }
  }

  void read_header(const Line& line) {
    const std::string key(line.words()[0]);
    static const std::vector<std::string> known{"schedule", "kind",  "stages",        "groups", "loads",
                                                "ties",     "skips", "gradient_from", "rank"};
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      line.refuse(
          fmt::format("expected \"schedule\", \"kind\", \"stages\", \"groups\", \"loads\", \"ties\", "
                      "\"skips\", \"gradient_from\" or \"rank\", found {}{}",
                      json::brief(key), did_you_mean(key, known)));
    }
    if (!program_.ranks.empty()) line.refuse(fmt::format("\"{}\" must stand before the ranks", key));
    if (!keys_.insert(key).second) line.refuse(fmt::format("\"{}\" was said before", key));
    const std::vector<std::string_view> values(line.words().begin() + 1, line.words().end());
    if (values.empty()) line.refuse(fmt::format("\"{}\" needs a value", key));
    if (key == "stages") {
      for (const auto value : values) {
        program_.placement.ranks.push_back(numbers_of(line, value, "the ranks of a stage as 0 or 0,1"));
      }
    } else if (key == "groups") {
      for (const auto value : values) add_groups(line, value);
    } else if (key == "loads") {
      for (const auto value : values) add_load(line, value);
    } else if (key == "ties") {
      for (const auto value : values) {
        std::vector<StageId>& holders = program_.ties.emplace_back();
        for (const Rank stage : numbers_of(line, value, "the stages that hold a tied weight as 0,3")) {
          holders.emplace_back(stage.value);
        }
      }
    } else if (key == "skips") {
      for (const auto value : values) add_skip(line, value);
    } else if (values.size() > 1) {
      line.refuse(fmt::format("expected one word after \"{}\", found {}", key, values.size()));
    } else if (key == "schedule") {
      if (!is_schedule_name(values[0])) {
        line.refuse(fmt::format("expected a name of visible ASCII, found {}", json::brief(values[0])));
      }
      program_.schedule = std::string(values[0]);
    } else if (key == "gradient_from") {
      std::string_view rest = values[0];
      const auto stage = take_number(rest);
      if (!stage || !rest.empty()) {
        line.refuse(
            fmt::format("expected the first stage with a trained weight, found {}", json::brief(values[0])));
      }
      program_.gradient_from = StageId{*stage};
    } else {
      try {
        json::read_value(Json(std::string(values[0])), line.place(), program_.kind, {});
      } catch (const Json::exception&) {  // not UTF-8
        line.refuse("expected \"train\" or \"validate\"");
      }
    }
  }

  static std::vector<Rank> numbers_of(const Line& line, std::string_view word, const char* expected) {
    std::vector<Rank> ranks;
    std::string_view rest = word;
    do {
      const auto rank = take_number(rest);
      if (!rank) break;
      ranks.emplace_back(*rank);
    } while (take(rest, ','));
    if (!rest.empty() || word.back() == ',') {
      line.refuse(fmt::format("expected {}, found {}", expected, json::brief(word)));
    }
    return ranks;
  }

  void add_load(const Line& line, std::string_view word) {
    std::string_view rest = word;
    const auto stage = take_number(rest);
    if (!stage || !rest.empty()) {
      line.refuse(fmt::format("expected stages that load fields of the batch, found {}", json::brief(word)));
    }
    program_.also_load.emplace_back(*stage);
  }

  void add_skip(const Line& line, std::string_view word) {
    std::string_view rest = word;
    const auto from = take_number(rest);
    const auto to = from && take(rest, '>') ? take_number(rest) : std::nullopt;
    if (!to || !rest.empty()) {
      line.refuse(
          fmt::format("expected a stage and one behind its next as 0>3, found {}", json::brief(word)));
    }
    program_.skips.push_back({StageId{*from}, StageId{*to}});
  }

  void add_groups(const Line& line, std::string_view word) {
    std::string_view rest = word;
    std::int64_t count = 1;
    auto size = take_number(rest);
    if (size && take(rest, 'x')) {
      count = *size;
      size = take_number(rest);
    }
    if (!size || !rest.empty() || count < 1 || *size < 1) {
      line.refuse(fmt::format("expected a group's micro-batches as 4, or 10x4 for ten such groups, found {}",
                              json::brief(word)));
    }
    total_ += count * *size;
    if (total_ > kMaxMicroBatches) {
      line.refuse(fmt::format("expected at most {} micro-batches in a segment", kMaxMicroBatches));
    }
    program_.group_sizes.insert(program_.group_sizes.end(), static_cast<std::size_t>(count), *size);
  }

  void read_rank(const Line& line) {
    if (program_.ranks.empty()) start_ranks(line);
    const auto& words = line.words();
    std::string_view name = words.size() > 1 ? words[1] : std::string_view();
    const auto rank = take_number(name);
    if (!rank || name != ":") line.refuse("expected \"rank NUMBER: ACTIONS\"");
    const auto r = static_cast<std::size_t>(*rank);
    if (r >= seen_.size()) {
      line.refuse(
          fmt::format("rank {} holds no stage; the stages are on ranks 0 to {}", r, seen_.size() - 1));
    }
    if (seen_[r]) line.refuse(fmt::format("rank {} has a line already", r));
    seen_[r] = true;
    actions_ += static_cast<std::int64_t>(words.size()) - 2;
    if (actions_ > kMaxActions) line.refuse_length();
    program_.ranks[r].reserve(words.size() - 2);
    for (std::size_t i = 2; i < words.size(); ++i)
      program_.ranks[r].push_back(action_of(line, words[i], held_[r]));
  }

  void start_ranks(const Line& line) {
    for (const char* key : {"stages", "groups"}) {
      if (!keys_.contains(key)) line.refuse(fmt::format("\"{}\" must stand before the ranks", key));
    }
    if (!keys_.contains("schedule")) program_.schedule = "custom";
    validate_header(program_, line.place());
    groups_ = program_.groups_by_micro_batch();
    held_ = program_.placement.stages_by_rank();
    program_.ranks.resize(static_cast<std::size_t>(program_.placement.world()));
    seen_.resize(program_.ranks.size(), false);
  }

  Action action_of(const Line& line, std::string_view word, const std::vector<StageId>& held) const {
    std::string_view rest = word;
    const auto stage = take_number(rest);
    const auto op = rest.empty() ? std::nullopt : op_of(rest.front());
    const auto malformed = [&] {
      line.refuse(fmt::format("expected an action such as F0, 1B3 or F4v2, found {}", json::brief(word)));
    };
    if (!op) malformed();
    rest.remove_prefix(1);
    const auto number = take_number(rest);
    if (!number) malformed();
    std::optional<std::int32_t> tie;
    if (take(rest, '.')) {
      tie = take_number(rest);
      if (!tie) malformed();
    }
    std::optional<std::int32_t> version;
    if (take(rest, 'v')) {
      version = take_number(rest);
      if (!version) malformed();
    }
    if (!rest.empty()) malformed();

    Action action{.op = *op};
    const ActionFields fields = fields_of(action.op);
    const auto refuse = [&](const std::string& what) { line.refuse(fmt::format("{}: {}", word, what)); };
    if (stage && !fields.stage) refuse(fmt::format("{} has no stage", enum_name(action.op)));
    if (version && !fields.version) refuse(fmt::format("{} has no version", enum_name(action.op)));
    if (tie && !fields.tie) refuse(fmt::format("{} has no tied weight", enum_name(action.op)));
    if (fields.tie) action.tie = TieId{tie.value_or(0)};
    if (fields.stage) {
      if (!stage && held.size() > 1)
        refuse("the rank holds several stages, so the stage must stand first, as in 1F0");
      action.stage = stage ? StageId{*stage} : held.front();
    }
    if (fields.micro_batch) {
      action.micro_batch = MicroBatch{*number};
      const auto mb = action.micro_batch.index();
      action.group = mb < groups_.size() ? groups_[mb] : Group{};
    } else {
      action.group = Group{*number};
    }
    action.version = version ? Version{*version} : default_version(action);
    const FieldError error = find_field_error(program_, static_cast<int>(groups_.size()), action);
    if (!error.what.empty()) refuse(error.what);
    return action;
  }

  const std::string& file_;
  ScheduleProgram program_;
  std::set<std::string> keys_;
  std::int64_t total_ = 0;    // micro-batches
  std::int64_t actions_ = 0;  // of the ranks so far
  std::vector<Group> groups_;
  std::vector<std::vector<StageId>> held_;  // per rank its stages
  std::vector<bool> seen_;
};

}  // namespace

std::string to_text(const ScheduleProgram& program) {
  std::string text = header_text(program);
  const auto held = program.placement.stages_by_rank();
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    text += fmt::format("rank {}:", r);
    for (const Action& action : program.ranks[r]) text += fmt::format(" {}", token_of(action, held[r]));
    text += '\n';
  }
  return text;
}

std::string to_text(const LoweredProgram& program) {
  std::string text = header_text(program);
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    text += fmt::format("rank {}:\n", r);
    for (std::size_t s = 0; s < program.slots[r].size(); ++s) {
      const SlotInfo& slot = program.slots[r][s];
      text += fmt::format("  slot {}: {} from stage {} to stage {}\n", s, enum_name(slot.payload),
                          slot.from.value, slot.to.value);
    }
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      const Action& action = program.ranks[r][i];
      const bool reads = is_compute(action.op) && action.slot.valid();
      text += fmt::format("  [{}] {}{}\n", i, describe_action(action),
                          reads ? fmt::format(" from slot {}", action.slot.value) : std::string());
    }
  }
  return text;
}

ScheduleProgram program_from_text(const std::string& text, const std::string& file) {
  return ProgramTextReader(file).read(text);
}

}  // namespace stagecraft
