#include "test/support/command.h"

#include "test/support/catch.h"

using stagecraft::test::CommandResult;

namespace {

CommandResult run(const std::vector<std::string>& arguments) {
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

}  // namespace

TEST_CASE("help and version go to stdout and are no error", "[command]") {
  for (const char* flag : {"--help", "-h"}) {
    const CommandResult help = run({flag});
    CHECK(help.code == 0);
    CHECK(help.err.empty());
    CHECK(says(help.out, "check"));
    CHECK(says(help.out, "simulate"));
    CHECK(says(help.out, "Exit codes"));
  }
  CHECK(run({"--version"}).out.find("stagecraft ") == 0);
  const CommandResult verb = run({"check", "--help"});
  CHECK(verb.code == 0);
  CHECK(says(verb.out, "--slots"));
  CHECK_FALSE(says(verb.out, "Exit codes"));  // said once, at the top
}

TEST_CASE("a word that is no verb is told with the nearest", "[command]") {
  const CommandResult result = run({"simulat", "plan.json"});
  CHECK(result.code == 2);
  CHECK(result.out.empty());
  CHECK(says(result.err, "stagecraft: \"simulat\" is not one of"));
  CHECK(says(result.err, "did you mean \"simulate\"?"));
}

TEST_CASE("bad usage exits 2 and says where the help is", "[command]") {
  const CommandResult none = run({});
  CHECK(none.code == 2);
  CHECK(says(none.err, "stagecraft --help"));
  const CommandResult missing = run({"check"});
  CHECK(missing.code == 2);
  CHECK(says(missing.err, "stagecraft: check: FILE is required"));
  CHECK(says(missing.err, "See `stagecraft check --help`."));
  const CommandResult unknown = run({"simulate", "x.json", "--sgv=a.svg"});
  CHECK(unknown.code == 2);
  CHECK(says(unknown.err, "unknown option --sgv; did you mean \"--svg\"?"));
  const CommandResult extra = run({"check", "a.json", "b.json"});
  CHECK(extra.code == 2);
  CHECK(says(extra.err, "\"b.json\" was not expected here"));
  for (const CommandResult& result : {none, missing, unknown, extra}) CHECK(result.out.empty());
}
