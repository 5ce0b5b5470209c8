// Words about broken JSON: where, what stands there, what was expected; and no text is refused without them.

#include "base/json_syntax.h"

#include "base/json.h"
#include "test/support/catch.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

using json::syntax_error;

TEST_CASE("broken JSON: the common slips, each in our own words", "[json_syntax]") {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{\n  \"a\": 1,\n}\n",
       R"(line 3, column 1: found "}" behind a comma; expected a key in double quotes: is the comma one too many?)"},
      {"[1, 2,]",
       R"(line 1, column 7: found "]" behind a comma; expected the value: is the comma one too many?)"},
      {"[1,,2]",
       R"(line 1, column 4: found "," behind a comma; expected the value: is the comma one too many?)"},
      {"{\"a\": 1\n \"b\": 2}",
       R"(line 2, column 2: found "b"; expected "," or "}" behind the value of "a")"},
      {"{\n \"model\": {\n  \"a\": [1, 2]\n",
       R"(line 4, column 1: found the end of the text; expected "," or "}" behind the value of "a": the "{" at line 2, column 11 has no end)"},
      {"{\"a\": [1, 2}",
       R"(line 1, column 12: found "}"; expected "," or "]", as "[" at line 1, column 7 was begun)"},
      {"{\"a\": 1}}", R"(line 1, column 9: found "}"; expected nothing behind the document's end)"},
      {"{\"a\": 1} # note",
       R"(line 1, column 10: found "#"; expected a comment to begin with "//" or to stand between "/*" and "*/")"},
      {"{\"a\": 1 /* note", R"(line 1, column 9: the comment that begins here has no end; expected "*/")"},
      {"{\"a\": NaN}",
       R"(line 1, column 7: found "NaN"; expected the value of "a": JSON has finite numbers alone)"},
      {"{\"a\": -Infinity}",
       R"(line 1, column 7: found "-Infinity"; expected the value of "a": JSON has finite numbers alone)"},
      {"{\"a\": True}", R"(line 1, column 7: found "True"; expected true)"},
      {"{\"a\": None}", R"(line 1, column 7: found "None"; expected null)"},
      {"{\"a\": adam}",
       R"(line 1, column 7: found "adam"; expected the value of "a": a text is written in double quotes)"},
      {"{\"a\": 'adam'}",
       R"(line 1, column 7: found "'"; expected the value of "a": a text is written in double quotes)"},
      {"{\"a\": 01}",
       R"(line 1, column 7: found "01"; expected the value of "a": a number is written as 12, -0.5 or 1e-3, and a text in double quotes)"},
      {"{\"a\": .5}",
       R"(line 1, column 7: found ".5"; expected the value of "a": a number is written as 12, -0.5 or 1e-3, and a text in double quotes)"},
      {"{a: 1}", R"(line 1, column 2: found "a"; expected a key in double quotes: "a")"},
      {"{\"a\" = 1}", R"(line 1, column 6: found "="; expected ":" behind the key "a")"},
      {"{\"a\": \"x\n}",
       "line 1, column 7: the text that begins here has no end; expected a double quote in the same line"},
      {"{\"path\": \"C:\\data\"}",
       R"(line 1, column 13: found a backslash that begins nothing known; expected \\ for a backslash, \" for a double quote or \n for the end of a line)"},
      {"{\"a\": \"\\ud800\"}",
       R"(line 1, column 8: found a "\u" that names no character; expected four digits of base 16, such as \u00e9)"},
      {"{\"ä\": \"\x80\"}", "line 1, column 8: found the byte 0x80; expected UTF-8 inside a text"},
      {"", R"(line 1, column 1: found the end of the text; expected a JSON document, which begins with "{")"},
      {"model: gpt\n", R"(line 1, column 1: found "model"; expected a JSON document, which begins with "{")"},
      {"\x1f\x8b\x08",
       R"(line 1, column 1: found the byte 0x1f; expected a JSON document, which begins with "{")"},
      {std::string("{\"a\": 1}\0", 9),
       "line 1, column 9: found the byte 0x00; expected nothing behind the document's end"},
  };
  for (const auto& [text, said] : cases) {
    CHECK(syntax_error(text) == said);
    CHECK_THROWS_WITH(json::parse_text(text, "x.json"), "x.json: not valid JSON: " + said);
  }
  CHECK(syntax_error("\xEF\xBB\xBF{\"a\": [1, -0.5e+3, \"\\u00e9\\ud83d\\ude00\"]} // note").empty());
}

/// Both must agree on every text: what nlohmann's parser refuses has words, and what it takes has none.
TEST_CASE("broken JSON: no text is refused without words, and none is wrongly called broken",
          "[json_syntax]") {
  const std::string whole =
      "{\n  // first\n  \"a\": [1, -0.5, 1e-3, true, null, \"x\\n\\u00e9\\\"\"],\n  \"b\": {\"ä\": {}, "
      "\"c\": []} /* "
      "last */\n}\n";
  REQUIRE(syntax_error(whole).empty());
  const std::vector<std::string> pieces{
      "{", "}", "[", "]",  ",",  ":",    "\"",   "\\",       "\\u",          "0",       "-",
      ".", "e", "+", "//", "/*", "*/",   "\n",   "true",     "nul",          "NaN",     "#",
      "'", " ", "7", "x",  "\r", "\x01", "\xFF", "\xC3\xA9", "\xED\xA0\x80", "\\ud800", "\\udc00"};
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::minstd_rand random(seed);
  const auto below = [&](std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random);
  };
  int refused = 0, taken = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string text = whole;
    for (std::size_t change = 0; change <= below(3); ++change) {
      const std::size_t at = below(text.size());
      text.replace(at, below(std::min<std::size_t>(text.size() - at + 1, 4)), pieces[below(pieces.size())]);
    }
    const bool is_json = Json::accept(text, /*ignore_comments=*/true);
    INFO(text);
    const std::string said = syntax_error(text);
    REQUIRE(said.empty() == is_json);
    (is_json ? taken : refused)++;
  }
  CHECK(refused > 1000);
  CHECK(taken > 100);
  for (std::size_t end = 0; end < whole.size(); ++end) {
    const std::string cut = whole.substr(0, end);
    INFO(cut);
    CHECK(syntax_error(cut).empty() == Json::accept(cut, /*ignore_comments=*/true));
  }
}

}  // namespace
}  // namespace stagecraft
