// No call that a model folder may have reads or writes beyond its tensors: of every operator in the list,
// valid calls and others drawn around them, each the way a graph's steps take (its file's rules, then the
// call), in a process of its own and in memory that tells (guarded_memory.h).
//
//   test_operators                                  under ctest
//   OPERATOR_SWEEP=20 test_operators                20 times as many calls, and the table of all operators
//   OPERATOR_CALL='{"tensors": ...}' test_operators one call, as a finding prints it

#include "base/error.h"
#include "models/captured/format/graph_values.h"
#include "models/captured/format/step_parser.h"
#include "models/captured/operators/operators.h"
#include "models/captured/replay/replay.h"
#include "models/captured/replay/step_work.h"
#include "test/models/guarded_memory.h"
#include "test/models/operator_calls.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stagecraft::test {
namespace {

using captured::Graph;
using captured::ValueId;

constexpr std::size_t kMostBytes = std::size_t{24} << 20U;
constexpr int kCallsPerOperator = 64;
constexpr int kSecondsPerCall = 20;
constexpr std::size_t kNote = 200;
constexpr const char* kDropout = "stagecraft::dropout";
constexpr const char* kOwn[] = {kDropout, "stagecraft::dropout_apply"};
constexpr std::uint8_t kNotNumbers = 0xFF, kSmallNumbers = 0x3C;

enum class Outcome : std::uint8_t {
  none,
  succeeded,
  ruled,
  refused,
  other_error,
  died,
  hung,
  damaged,
  wrote,
  depends
};

const char* text_of(Outcome outcome) {
  constexpr const char* kTexts[] = {"not run",
                                    "succeeded",
                                    "refused by a rule",
                                    "refused by LibTorch",
                                    "ended in an error of its own kind",
                                    "killed the process",
                                    "did not end",
                                    "wrote beyond a tensor",
                                    "wrote to an argument",
                                    "has results that depend on memory outside of its arguments"};
  return kTexts[static_cast<std::size_t>(outcome)];
}
bool is_finding(Outcome outcome) { return outcome >= Outcome::other_error; }

/// Results by their place among all, with types once they are known.
using Types = std::map<std::pair<std::size_t, std::size_t>, std::string>;

/// The first steps of a call, with what is declared of their results so far.
class Trial {
 public:
  Trial(const Json& call, std::size_t count, const Types& types) {
    for (const Json& spec : call["tensors"]) {
      tensors_.push_back(tensor_of(spec));
      captured::ValueType type{tensors_.back().scalar_type(), {}};
      for (const std::int64_t size : tensors_.back().sizes()) type.sizes.push_back({0, size});
      graph_.constants.push_back(type);
    }
    std::vector<std::vector<std::string>> results;
    Json steps = Json::array();
    int next = 0;
    for (std::size_t s = 0; s < count; ++s) {
      const Json& step = call["steps"][s];
      Json names = Json::array();
      results.emplace_back();
      for (std::size_t r = 0; types.contains({s, r}); ++r) {
        const std::string& type = types.at({s, r});
        results.back().push_back(type.empty() ? "?" : fmt::format("%{}", next));
        names.push_back(type.empty() ? Json() : Json(fmt::format("%{} {}", next++, type)));
      }
      steps.push_back(Json::array({step[0], names, written(step[1], results)}));
    }
    captured::GraphValues values(graph_, "call");
    captured::StepParser parser(values);
    values.begin(captured::Part::forward);
    graph_.forward = parser.read(steps, "forward/steps");
    for (const ValueId id : graph_.forward.back().results) {
      if (id != captured::kNoValue) outputs_.push_back(id);
    }
  }

  [[nodiscard]] const Tensors& tensors() const { return tensors_; }

  /// Of the last step. `hold`: whether the arguments outlive it. `ran` becomes true before the first step runs.
  Tensors run(bool hold, MatrixProducts products, bool* ran) {
    for (const captured::Step& step : graph_.forward) (void)captured::work_of(step, graph_.values, 1);
    std::vector<ValueId> inputs;
    std::vector<c10::IValue> frame;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      inputs.push_back(graph_.constant(i));
      frame.emplace_back(tensors_[i]);
    }
    if (!hold) tensors_.clear();
    const captured::Program program({"graph", graph_.forward, graph_.values, inputs, outputs_}, 1, at::kCPU,
                                    products);
    *ran = true;
    return program.run(std::move(frame), {});
  }

 private:
  static Json written(const Json& argument, const std::vector<std::vector<std::string>>& results) {
    if (argument.is_array()) {
      Json list = Json::array();
      for (const Json& each : argument) list.push_back(written(each, results));
      return list;
    }
    if (argument.is_object() && argument.contains("tensor")) {
      return fmt::format("c{}", argument["tensor"].get<std::size_t>());
    }
    if (argument.is_object() && argument.contains("step")) {
      return results.at(argument["step"].get<std::size_t>()).at(argument["result"].get<std::size_t>());
    }
    return argument;
  }

  Graph graph_;
  Tensors tensors_;
  std::vector<ValueId> outputs_;
};

/// As many as the schema has, of a type that nothing has.
void declare(Types& types, std::size_t step, std::size_t count) {
  std::erase_if(types, [&](const auto& type) { return type.first.first == step; });
  for (std::size_t r = 0; r < count; ++r) types[{step, r}] = "i32[77]";
}

/// From an error that says what a step has made: ", aten::OP: result 1 is f32[2], its declared type ...".
bool learn(Types& types, const Json& call, const std::string& error) {
  const auto between = [&](const std::string& before, const std::string& after) -> std::string {
    const std::size_t begin = error.find(before);
    if (begin == std::string::npos) return "";
    const std::size_t from = begin + before.size(), end = error.find(after, from);
    return end == std::string::npos ? "" : error.substr(from, end - from);
  };
  for (std::size_t s = 0; s < call["steps"].size(); ++s) {
    const auto name = call["steps"][s][0].get<std::string>();
    const std::string made = between(name + " makes ", " tensors, the graph says");
    if (!made.empty()) {
      declare(types, s, std::stoul(made));
      return true;
    }
    const std::string found = between(name + ": result ", ", its declared type");
    const std::size_t is = found.find(" is ");
    if (is == std::string::npos) continue;
    std::string& type = types[{s, std::stoul(found)}];
    if (type != "i32[77]") continue;  // an earlier step of the same operator
    type = found.substr(is + 4) == "no tensor" ? "" : found.substr(is + 4);
    std::erase(type, ' ');
    return true;
  }
  // Stagecraft's own have types that follow from their arguments.
  const std::string at = between("forward/steps/", "expected a value of type ");
  const std::string type = between("expected a value of type ", ", this is i32[77]");
  if (type.empty() || at.find("/1/") == std::string::npos) return false;
  types[{std::stoul(at), std::stoul(at.substr(at.find("/1/") + 3))}] = type;
  return true;
}

struct Result {
  Outcome outcome = Outcome::none;
  std::string note;
};

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

bool is_product(const Json& call) {
  const Json& name = call["steps"].back()[0];
  return name == "aten::mm" || name == "aten::addmm";
}

Result tried(const Json& call) {
  const c10::InferenceMode as_in_a_run;
  Types types;
  for (std::size_t s = 0; s < call["steps"].size(); ++s) {
    const auto name = call["steps"][s][0].get<std::string>();
    const captured::Operator* op = captured::find_operator(name);
    declare(types, s,
            op != nullptr      ? captured::handle_of(*op).schema().returns().size()
            : name == kDropout ? 2
                               : 1);
  }
  Tensors made;
  set_guard(Guard::behind, kNotNumbers);
  const auto failed = [](bool by_rule, const std::string& what) -> Result {
    if (take_damaged() > 0) return {Outcome::damaged, what};
    return {by_rule ? Outcome::ruled : Outcome::refused, what};
  };
  const std::size_t all = call["steps"].size();
  for (std::size_t count = 1; count <= all;) {
    bool ran = false;
    try {
      Trial trial(call, count, types);
      made = trial.run(true, MatrixProducts::blas, &ran);
      for (std::size_t i = 0; i < trial.tensors().size(); ++i) {
        if (!same_bytes(trial.tensors()[i], tensor_of(call["tensors"][i]))) return {Outcome::wrote, ""};
      }
      ++count;
    } catch (const c10::OutOfMemoryError& error) {
      return failed(false, error.what_without_backtrace());
    } catch (const InputError& error) {
      const std::string what = error.what();
      if (learn(types, call, what)) continue;
      return failed(!ran || what.find("expected indices from") != std::string::npos, what);
    } catch (const std::exception& error) {
      return {Outcome::other_error, error.what()};
    }
  }
  if (take_damaged() > 0) return {Outcome::damaged, ""};
  set_guard(Guard::before, kSmallNumbers);
  try {
    bool ran = false;
    const Tensors again = Trial(call, all, types).run(false, MatrixProducts::blas, &ran);
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!same_bytes(made[i], again[i])) return {Outcome::depends, fmt::format("result {}", i)};
    }
  } catch (const std::exception& error) {
    return {Outcome::depends, error.what()};
  }
  if (is_product(call)) {  // by the other library
    bool ran = false;
    try {
      (void)Trial(call, all, types).run(false, MatrixProducts::onednn, &ran);
    } catch (const std::exception& error) {
      return {Outcome::other_error, error.what()};
    }
  }
  if (take_damaged() > 0) return {Outcome::damaged, ""};
  return {Outcome::succeeded, ""};
}

/// What processes that may die write their results to.
struct Entry {
  Outcome outcome;
  char note[kNote];
};
struct Shared {
  std::size_t next;
  Entry entries[1];
};

/// Runs calls one after the other, and goes on in another process behind one that killed the first.
std::vector<Result> run_all(const std::vector<Json>& calls) {
  const std::size_t bytes = sizeof(Shared) + calls.size() * sizeof(Entry);
  auto* const shared =
      static_cast<Shared*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  REQUIRE(shared != MAP_FAILED);
  while (shared->next < calls.size()) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
      for (const int fatal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL})
        std::signal(fatal, SIG_DFL);  // not Catch's
      while (shared->next < calls.size()) {
        const itimerval limit{{0, 0}, {kSecondsPerCall, 0}};
        setitimer(ITIMER_PROF, &limit, nullptr);
        const Result result = tried(calls[shared->next]);
        Entry& entry = shared->entries[shared->next];
        std::strncpy(entry.note, result.note.c_str(), kNote - 1);
        entry.outcome = result.outcome;
        ++shared->next;
      }
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    Entry& entry = shared->entries[shared->next++];
    const bool hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
    entry.outcome = hung ? Outcome::hung : Outcome::died;
    std::strncpy(entry.note, WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit", kNote - 1);
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    results.push_back({shared->entries[i].outcome, shared->entries[i].note});
  }
  munmap(shared, bytes);
  return results;
}

std::map<std::string, std::vector<Json>> valid_calls() {
  std::map<std::string, std::vector<Json>> calls;
  std::ifstream file(STAGECRAFT_TEST_DATA "/operators/calls.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    calls[json.at(0)].push_back(call_of(json));
  }
  return calls;
}

/// A seed by an operator's place and a call's, the same everywhere.
Random random_of(const std::string& name, int i) {
  std::uint64_t seed = 1469598103934665603U;
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return Random(seed + static_cast<std::uint64_t>(i));
}

struct Row {
  int drawn = 0, succeeded = 0, ruled = 0, refused = 0, findings = 0;
  void add(Outcome outcome) {
    ++drawn;
    succeeded += outcome == Outcome::succeeded;
    ruled += outcome == Outcome::ruled;
    refused += outcome == Outcome::refused;
    findings += is_finding(outcome);
  }
};

void print(const std::string& name, const Row& row) {
  fmt::print("{:<58}{:>8}{:>11}{:>9}{:>9}{:>10}\n", name, row.drawn, row.succeeded, row.ruled, row.refused,
             row.findings);
}

}  // namespace

TEST_CASE("no call of an operator reads or writes beyond its tensors", "[operators]") {
  at::set_num_threads(1);
  install_guarded_memory(kMostBytes);
  if (const char* one = std::getenv("OPERATOR_CALL")) {
    const Result result = tried(Json::parse(one));
    FAIL(text_of(result.outcome) << ": " << result.note);
  }
  const char* const sweep = std::getenv("OPERATOR_SWEEP");
  const char* const only = std::getenv("OPERATOR");
  const int number = kCallsPerOperator * (sweep == nullptr ? 1 : std::max(1, std::atoi(sweep)));
  const std::map<std::string, std::vector<Json>> listed = valid_calls();
  std::vector<Json> calls;
  std::vector<std::string> names;
  std::vector<std::string> operators(std::begin(kOwn), std::end(kOwn));
  for (const captured::Operator& op : captured::operators()) operators.emplace_back(op.name);
  for (const std::string& name : operators) {
    if (only != nullptr && name.find(only) == std::string::npos) continue;
    std::vector<Json> valid = plain_calls(name);
    if (const auto its = listed.find(name); its != listed.end()) {
      valid.insert(valid.end(), its->second.begin(), its->second.end());
    }
    INFO(name << " has no calls");
    REQUIRE_FALSE(valid.empty());
    for (int i = 0; i < number; ++i) {
      Random random = random_of(name, i);
      const auto first = static_cast<std::size_t>(i);
      calls.push_back(first < valid.size() ? valid[first] : changed(valid[random() % valid.size()], random));
      names.push_back(name);
    }
  }
  const std::vector<Result> results = run_all(calls);
  Row all;
  std::map<std::string, Row> rows;
  std::map<std::string, int> shown;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    rows[names[i]].add(results[i].outcome);
    all.add(results[i].outcome);
    if (is_finding(results[i].outcome) && ++shown[names[i] + text_of(results[i].outcome)] <= 2) {
      FAIL_CHECK(names[i] << " " << text_of(results[i].outcome) << " (" << results[i].note
                          << "): " << calls[i].dump());
    }
  }
  fmt::print("{:<58}{:>8}{:>11}{:>9}{:>9}{:>10}\n", "operator", "calls", "succeeded", "by rule", "LibTorch",
             "findings");
  for (const auto& [name, row] : rows) {
    if (sweep != nullptr || row.findings > 0) print(name, row);
    INFO(name);
    CHECK(row.succeeded > 0);  // its kernel is reached
  }
  print(fmt::format("{} operators", rows.size()), all);
}

}  // namespace stagecraft::test
