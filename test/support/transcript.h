#pragma once

// Golden transcripts: sessions in a shell with everything that was printed and written, compared as a whole.
//
// test/golden/NAME.txt holds a session. Each command stands behind "$ ", its further lines behind "> ":
//
//   $ stagecraft check none.json
//   [stderr]
//   stagecraft: none.json: cannot be opened: No such file or directory
//   [exit 2]
//
// Standard output follows the command as it is, then "[stderr]" and standard error, then "[wrote FILE]" for
// each file that the command made or changed, then "[exit CODE]". Only commands that begin with `stagecraft`
// have their files listed: what others write is input. Text between an exit and the next command is a
// comment. A session's commands run one after another in one empty folder, in which `data`, `configs` and
// `docs` are the repository's.

#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

struct TranscriptOptions {
  /// Whether written files are compared too, with those in test/golden/NAME/.
  bool file_contents = true;
  /// Regular expressions (ECMAScript) and their replacements, applied in this order to what was printed.
  std::vector<std::pair<std::string, std::string>> masks{};
};

/// Runs the session within a test case, which fails with a diff where anything differs from its golden files.
/// With STAGECRAFT_ACCEPT=1 in the environment it writes the golden files instead. Throws where the golden
/// file is missing or has no command.
void check_transcript(const std::string& name, const TranscriptOptions& options = {});

}  // namespace stagecraft::test
