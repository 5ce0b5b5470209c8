#include "test/support/transcript.h"

#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <utility>
#include <vector>

namespace stagecraft::test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = STAGECRAFT_TEST_DATA "/../golden/";

using Files = std::map<std::string, std::string>;  ///< contents by path

/// A command of a session with the text before it.
struct Command {
  std::string comment;
  std::vector<std::string> lines;
};

struct Session {
  std::vector<Command> commands;
  std::string rest;  ///< behind the last command
};

struct Run {
  std::string transcript;
  Files written;  ///< by stagecraft
};

Session parse(const std::string& text) {
  Session session;
  std::string comment;
  bool output = false;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("$ ")) {
      session.commands.push_back({std::exchange(comment, ""), {line.substr(2)}});
      output = true;
    } else if (output && line.starts_with("> ")) {
      session.commands.back().lines.push_back(line.substr(2));
    } else if (output) {
      output = !line.starts_with("[exit ");
    } else {
      comment += line + "\n";
    }
  }
  if (session.commands.empty()) throw std::runtime_error("there is no command in it");
  session.rest = comment;
  return session;
}

Files files_below(const fs::path& folder) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && !entry.is_symlink()) {
      files[fs::relative(entry.path(), folder).string()] = read_text_file(entry.path().string());
    }
  }
  return files;
}

/// Its lines as they stand in a transcript.
std::string quoted(const std::string& text) {
  if (text.empty()) return "";
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    for (const char* mark : {"$ ", "> ", "[stderr]", "[wrote ", "[exit "}) {
      if (line.starts_with(mark)) throw std::runtime_error("a transcript cannot hold this output: " + line);
    }
  }
  return text.ends_with('\n') ? text : text + "\n[no newline at the end]\n";
}

class SessionRun {
 public:
  explicit SessionRun(const TranscriptOptions& options) : options_(options) {
    const fs::path repository = fs::canonical(STAGECRAFT_TEST_DATA "/../..");
    fs::create_directory(here_.path("session"));
    for (const auto& [link, target] :
         {std::pair{"data", "test/data"}, {"configs", "configs"}, {"docs", "docs"}}) {
      fs::create_directory_symlink(repository / target, here_.path("session") + "/" + link);
    }
  }

  void execute(const Command& command) {
    const Files before = files_below(here_.path("session"));
    std::string script;
    for (const std::string& line : command.lines) script += line + "\n";
    const std::string line = fmt::format(
        "unset COLUMNS LINES NO_COLOR; cd {0}/session && LC_ALL=C OMP_NUM_THREADS=1 PATH={1}:$PATH sh {2} > "
        "{0}/out 2> {0}/err < /dev/null",
        here_.path(""), fs::path(STAGECRAFT_COMMAND).parent_path().string(), here_.write("script", script));
    const int status = std::system(line.c_str());  // NOLINT: the golden file's own words
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);

    std::string& transcript = run_.transcript;
    transcript += command.comment.empty() && !transcript.empty() ? "\n" : command.comment;
    for (std::size_t i = 0; i < command.lines.size(); ++i)
      transcript += (i == 0 ? "$ " : "> ") + command.lines[i] + "\n";
    transcript += quoted(masked(read_text_file(here_.path("out"))));
    const std::string err = quoted(masked(read_text_file(here_.path("err"))));
    if (!err.empty()) transcript += "[stderr]\n" + err;
    static const std::regex ours("([A-Z_]+=[^ ]* )*stagecraft ");
    if (std::regex_search(script, ours, std::regex_constants::match_continuous)) {
      for (auto& [path, contents] : files_below(here_.path("session"))) {
        const auto old = before.find(path);
        if (old != before.end() && old->second == contents) continue;
        transcript += fmt::format("[wrote {}]\n", path);
        run_.written[path] = contents;
      }
    }
    transcript += fmt::format("[exit {}]\n", code);
  }

  [[nodiscard]] Run end(const std::string& rest) {
    run_.transcript += rest;
    return std::move(run_);
  }

 private:
  [[nodiscard]] std::string masked(std::string text) const {
    const std::string here = here_.path("session");
    for (std::size_t at = 0; (at = text.find(here, at)) != std::string::npos;)
      text.replace(at, here.size(), "/HERE");
    for (const auto& [what, by] : options_.masks) text = std::regex_replace(text, std::regex(what), by);
    return text;
  }

  const TranscriptOptions& options_;
  ScratchFolder here_;
  Run run_;
};

/// What `diff -u` says of two texts, which differ.
std::string difference(const std::string& path, const std::string& golden, const std::string& now) {
  constexpr int kMostLines = 120;
  const ScratchFolder folder;
  const std::string line = fmt::format("diff -u --label golden/{0} --label now/{0} {1} {2} | cut -c 1-400",
                                       path, folder.write("golden", golden), folder.write("now", now));
  std::string said;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run diff");
  int lines = 0;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    if (lines < kMostLines) said += static_cast<char>(c);
    lines += c == '\n' ? 1 : 0;
  }
  pclose(pipe);
  if (lines > kMostLines) said += fmt::format("... and {} lines more\n", lines - kMostLines);
  return said;
}

std::string compare(const Files& golden, const Files& now) {
  std::string said;
  for (const auto& [path, contents] : now) {
    const auto old = golden.find(path);
    if (old == golden.end()) {
      said += fmt::format("golden/{} is not there, but is written now\n", path);
    } else if (old->second != contents) {
      said += difference(path, old->second, contents);
    }
  }
  for (const auto& [path, contents] : golden) {
    if (!now.contains(path)) said += fmt::format("golden/{} is there, but is not written any more\n", path);
  }
  return said;
}

void accept(const std::string& name, const Files& now) {
  fs::remove_all(kGolden + name);
  for (const auto& [path, contents] : now) {
    fs::create_directories(fs::path(kGolden + path).parent_path());
    std::ofstream(kGolden + path, std::ios::binary) << contents;
  }
}

}  // namespace

void check_transcript(const std::string& name, const TranscriptOptions& options) {
  Files golden{{name + ".txt", read_text_file(kGolden + name + ".txt")}};
  if (fs::exists(kGolden + name)) {
    for (auto& [path, contents] : files_below(kGolden + name))
      golden[name + "/" + path] = std::move(contents);
  }
  SessionRun session(options);
  const Session asked = parse(golden.at(name + ".txt"));
  for (const Command& command : asked.commands) session.execute(command);
  Run run = session.end(asked.rest);

  Files now{{name + ".txt", std::move(run.transcript)}};
  if (options.file_contents) {
    for (auto& [path, contents] : run.written) now[name + "/" + path] = std::move(contents);
  }
  const char* accepting = std::getenv("STAGECRAFT_ACCEPT");
  if (accepting != nullptr && std::string(accepting) == "1") return accept(name, now);
  const std::string differences = compare(golden, now);
  fmt::print(stderr, "{}", differences);  // Catch would break its lines
  INFO(
      "differs from test/golden, see above; if it was meant to, STAGECRAFT_ACCEPT=1 writes what is there "
      "now");
  CHECK(differences.empty());
}

}  // namespace stagecraft::test
