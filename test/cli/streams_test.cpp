// Exit codes where standard output or standard error cannot be written: each verb, failing and not, with a full
// disk, no stream at all, a reader that is gone and a terminal that is closed behind either of them.

#include "test/support/catch.h"
#include "test/support/command.h"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <spawn.h>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using stagecraft::test::read_text_file;
using stagecraft::test::ScratchFolder;

enum class Broken { full_disk, closed, no_reader, closed_terminal };

/// A descriptor that refuses what is written to it; -1 for none at all.
int broken_stream(Broken how) {
  if (how == Broken::closed) return -1;
  if (how == Broken::full_disk) return ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (how == Broken::no_reader) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    ::close(ends[0]);
    return ends[1];
  }
  const int host = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (host < 0 || ::grantpt(host) != 0 || ::unlockpt(host) != 0) throw std::runtime_error("no terminal");
  const int terminal = ::open(::ptsname(host), O_RDWR | O_NOCTTY | O_CLOEXEC);
  ::close(host);
  return terminal;
}

/// Exit code, or 128 and the signal. The other stream goes to a file, whose contents are put into `said`.
int code_of(const std::vector<std::string>& arguments, int stream, Broken how, std::string& said) {
  const ScratchFolder folder;
  const std::string other = folder.path("other");
  std::vector<std::string> words{STAGECRAFT_COMMAND};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int broken = broken_stream(how);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 3 - stream, other.c_str(), O_WRONLY | O_CREAT, 0600);
  if (broken < 0) {
    posix_spawn_file_actions_addclose(&files, stream);
  } else {
    posix_spawn_file_actions_adddup2(&files, broken, stream);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &pipe);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  pid_t child = 0;
  const int error = posix_spawn(&child, STAGECRAFT_COMMAND, &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (broken >= 0) ::close(broken);
  if (error != 0) throw std::runtime_error("cannot start " STAGECRAFT_COMMAND);
  int status = 0;
  waitpid(child, &status, 0);
  said = read_text_file(other);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

const std::string kData = STAGECRAFT_TEST_DATA;

}  // namespace

TEST_CASE("a failing verb keeps its exit code, whatever becomes of its messages", "[streams]") {
  struct Case {
    std::vector<std::string> arguments;
    int code;
  };
  const std::string none = "none-such.json";
  const ScratchFolder folder;
  std::string program = read_text_file(kData + "/schedules/1f1b_p3_m4.txt");
  program.erase(program.find("L1 "), 3);
  const std::string refused = folder.write("short.schedule", program);
  const std::vector<Case> cases{{{}, 2},
                                {{"nonsense"}, 2},
                                {{"plan", "--nonsense"}, 2},
                                {{"plan", "--profile", none, "--cluster", none}, 2},
                                {{"compare", "--profile", none, "--cluster", none}, 2},
                                {{"explain", "--profile", none, "--cluster", none}, 2},
                                {{"replan", none, "--profile", none, "--cluster", none}, 2},
                                {{"check", none}, 2},
                                {{"check", refused}, 3},
                                {{"simulate", none}, 2},
                                {{"report", none}, 2},
                                {{"convert", none, "--to", "json"}, 2},
                                {{"train", none}, 2}};
  std::string said;
  for (const Case& its : cases) {
    INFO((its.arguments.empty() ? "no verb" : its.arguments.front()));
    for (const Broken how : {Broken::full_disk, Broken::closed, Broken::no_reader, Broken::closed_terminal}) {
      INFO(static_cast<int>(how));
      CHECK(code_of(its.arguments, STDERR_FILENO, how, said) == its.code);
      CHECK(code_of(its.arguments, STDOUT_FILENO, how, said) == its.code);
      CHECK(stagecraft::test::says(said, "stagecraft: "));  // on the stream that is whole
    }
  }
}

TEST_CASE("a verb that succeeds needs standard error for nothing, and standard output for its answer",
          "[streams]") {
  const std::vector<std::vector<std::string>> cases{
      {"--help"}, {"--version"}, {"check", kData + "/plans/four_stages.json"}, {"completion", "bash"}};
  std::string said;
  for (const auto& arguments : cases) {
    INFO(arguments.front());
    for (const Broken how : {Broken::full_disk, Broken::closed, Broken::no_reader, Broken::closed_terminal}) {
      INFO(static_cast<int>(how));
      CHECK(code_of(arguments, STDERR_FILENO, how, said) == 0);
      CHECK_FALSE(said.empty());
      // Who closes a pipe wants no more of it, which is no failure to tell of.
      const int code = code_of(arguments, STDOUT_FILENO, how, said);
      CHECK((code == 1 || (how == Broken::no_reader && code == 128 + SIGPIPE)));
      if (code == 1) CHECK(stagecraft::test::says(said, "cannot write to standard output"));
    }
  }
}

TEST_CASE("files that a command opens never become its standard streams", "[streams]") {
  const ScratchFolder folder;
  const std::string out = folder.path("plan.json");
  std::string said;
  const std::vector<std::string> plan{
      "plan", "--profile", kData + "/run/profile.json", "--cluster", kData + "/run/cluster.json", "-o", out};
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    (void)code_of(plan, stream, Broken::closed, said);
    CHECK(read_text_file(out).starts_with("{"));
    CHECK(read_text_file(out).ends_with("}\n"));
  }
}
