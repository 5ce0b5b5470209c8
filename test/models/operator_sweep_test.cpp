// No call that a model folder may have reads or writes beyond its tensors: of every operator in the list,
// valid calls and others drawn around them, each the way a graph's steps take (its file's rules, then the
// call), in a process of its own and in memory that tells (guarded_memory.h).
//
//   test_operators                                  under ctest
//   OPERATOR_SWEEP=20 test_operators                20 times as many calls, and the table of all operators
//   OPERATOR_CALL='{"tensors": ...}' test_operators one call, as a finding prints it

#include "base/error.h"
#include "models/captured/operators/operators.h"
#include "test/models/guarded_memory.h"
#include "test/models/operator_calls.h"
#include "test/models/operator_trial.h"
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

constexpr std::size_t kMostBytes = std::size_t{24} << 20U;
constexpr int kCallsPerOperator = 64;
constexpr int kSecondsPerCall = 20;
constexpr std::size_t kNote = 200;
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
  ResultTypes types = unknown_types(call);
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
      OperatorTrial trial(call, count, types);
      made = trial.run(at::kCPU, true, MatrixProducts::blas, &ran);
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
    const Tensors again = OperatorTrial(call, all, types).run(at::kCPU, false, MatrixProducts::blas, &ran);
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (!same_bytes(made[i], again[i])) return {Outcome::depends, fmt::format("result {}", i)};
    }
  } catch (const std::exception& error) {
    return {Outcome::depends, error.what()};
  }
  if (is_product(call)) {  // by the other library
    bool ran = false;
    try {
      (void)OperatorTrial(call, all, types).run(at::kCPU, false, MatrixProducts::onednn, &ran);
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
  std::vector<Json> calls;
  std::vector<std::string> names;
  for (const auto& [name, valid] : valid_calls(STAGECRAFT_TEST_DATA "/operators/calls.jsonl")) {
    if (only != nullptr && name.find(only) == std::string::npos) continue;
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
