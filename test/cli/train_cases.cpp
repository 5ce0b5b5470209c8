#include "test/cli/train_cases.h"

#include "test/support/catch.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <sys/wait.h>

namespace stagecraft::test {

Json tiny_run(const ScratchFolder& folder) {
  Json json = Json::parse(R"({
    "model": {"family": "mlp", "hidden": [16, 12]},
    "data": {"type": "synthetic", "samples": 96, "validation_samples": 16, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "train_steps": 4,
    "threads_per_rank": 1,
    "matrix_products": "blas",
    "profiler": {"repeats": 2, "warmup_ms": 0},
    "pipeline": {"cuts": [2]},
    "comms": {"timeout_s": 20}
  })");
  json["run_dir"] = folder.path("run");
  return json;
}

CommandResult shell_line(const ScratchFolder& folder, const std::string& line) {
  const std::string out = folder.path("shell.out"), err = folder.path("shell.err");
  const int status = std::system(  // NOLINT: our own words
      fmt::format("( {} ) > {} 2> {} < /dev/null", line, out, err).c_str());
  CommandResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_text_file(out);
  result.err = read_text_file(err);
  return result;
}

CommandResult shell(const ScratchFolder& folder, const std::string& command) {
  return shell_line(folder, fmt::format(fmt::runtime(command), STAGECRAFT_COMMAND));
}

CommandResult train(const ScratchFolder& folder, const Json& config, std::vector<std::string> more) {
  more.insert(more.begin(), {"train", folder.write("run.json", config.dump())});
  return stagecraft(more);
}

int messages(const std::string& err) {
  int count = 0;
  for (std::size_t at = err.find("stagecraft: "); at != std::string::npos;
       at = err.find("stagecraft: ", at + 1)) {
    // Open MPI 5 ends its own messages with a NUL.
    if (at == 0 || err[at - 1] == '\n' || err[at - 1] == '\0') ++count;
  }
  return count;
}

void check_refused(const CommandResult& result, int code, const std::string& what) {
  INFO(result.err);
  CHECK(result.code == code);
  CHECK(says(result.err, what));
  CHECK(messages(result.err) == 1);
}

std::string mpirun() { return fmt::format("{}timeout 60 mpirun -np ", kMpirunEnvironment); }

std::string each_rank(const ScratchFolder& folder, const std::vector<std::string>& lines) {
  std::string script = "case $OMPI_COMM_WORLD_RANK in\n";
  for (std::size_t r = 0; r < lines.size(); ++r) script += fmt::format("{}) {};;\n", r, lines[r]);
  return fmt::format("bash {} ", folder.write("each_rank.sh", script + "esac\nexec \"$@\"\n"));
}

bool has_mpirun() { return std::system("command -v mpirun > /dev/null 2>&1") == 0; }

std::vector<Json> facts(const std::string& run_dir) {
  std::vector<Json> records;
  std::ifstream in(run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    Json record = Json::parse(line);
    for (const char* key : {"unix_time", "ms", "samples_per_second"}) record.erase(key);
    records.push_back(record);
  }
  return records;
}

}  // namespace stagecraft::test
