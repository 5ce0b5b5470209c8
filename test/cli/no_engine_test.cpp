#include "test/support/catch.h"
#include "test/support/command.h"

TEST_CASE("a build without the engine says so when asked to train", "[no_engine]") {
  for (const char* verb : {"profile", "train", "doctor"}) {
    for (const std::vector<std::string>& rest :
         {std::vector<std::string>{}, {"run.json", "--resume"}, {"--help"}}) {
      std::vector<std::string> arguments{verb};
      arguments.insert(arguments.end(), rest.begin(), rest.end());
      const auto result = stagecraft::test::stagecraft(arguments);
      CHECK(result.code == 2);
      CHECK(result.err.find(std::string("stagecraft: ") + verb + ": this build has no engine") == 0);
    }
  }
  CHECK(stagecraft::test::stagecraft({"--help"}).out.find("train ") == std::string::npos);
}
