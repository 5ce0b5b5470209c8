#include "base/error.h"
#include "base/failure.h"
#include "base/files.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/table.h"
#include "base/utf8.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace stagecraft {
namespace {

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = first_code_point(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

struct Inner {
  int count = 3;
};
template <class V>
void describe(V& v, Inner& i) {
  v.optional("count", i.count, "how many", json::between(1, 5));
}

enum class Color : std::uint8_t { red, green };

/// Settings as a program outside of the tree has them: of every type that Fields knows.
struct Other {
  bool on = false;
  int small = 1;
  std::int64_t large = 2;
  std::uint64_t seed = 3;
  double rate = 0.25;
  std::string word = "a";
  Seconds time{0.5};
  Bytes bytes{6};
  Color color = Color::green;
  Inner inner;
  std::vector<std::vector<std::int64_t>> lists{{1}, {}};
};

}  // namespace
template <>
inline constexpr std::array enum_names<Color>{"red", "green"};
namespace {

void describe(Fields& f, Other& o) {
  f.optional("on", o.on, "a switch");
  f.optional("small", o.small, "a number");
  f.optional("large", o.large, "a number");
  f.optional("seed", o.seed, "a number");
  f.optional("rate", o.rate, "a rate", json::above(0));
  f.optional("word", o.word, "a word", json::non_empty());
  f.optional("time_ms", o.time, "a time");
  f.optional("bytes", o.bytes, "an amount");
  f.optional("color", o.color, "a color");
  f.optional("inner", o.inner, "an object");
  f.optional("lists", o.lists, "lists", json::at_least(1));
  f.require(o.small <= o.large, "small", "small is larger than large");
}

/// Products are texts: the settings' own number and the site's.
struct Kind {
  using Site = int;
  using Product = std::string;
  static constexpr const char* kWhat = "kind";
  static Registry<Kind>& registry() {
    static auto& all = *new Registry<Kind>([](Registry<Kind>& added) {
      added.add<Inner>("inner", [](const Inner& i, int site) { return std::to_string(i.count + site); });
      added.add<Other>("other", [](const Other& o, int) { return o.word; },
                       {.doc = "all types", .location_keys = {"word"}});
    });
    return all;
  }
};

struct Outer {
  double rate = 0.5;
  Seconds time;
  std::vector<Inner> list;
  std::optional<Bytes> cap, change;
  Named<Kind> choice;
};
template <class V>
void describe(V& v, Outer& o) {
  v.required("rate", o.rate, "a rate", json::above(0));
  v.optional("time_ms", o.time, "a time");
  v.optional("list", o.list, "several");
  v.optional("cap_bytes", o.cap, "a cap");
  v.optional("change_bytes", o.change, "more or less", json::at_least(-9));
  v.registered("kind", o.choice, "which", "params");
  v.require(o.cap.has_value() == o.change.has_value(), "", "expected both bytes or none");
}

std::string message_of(const std::string& text) {
  try {
    (void)json::read<Outer>(json::parse_text(text, "x.json"), {"x.json", ""});
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a described value survives writing and reading", "[base]") {
  Outer outer;
  outer.rate = 2;
  outer.time = Seconds{0.25};
  outer.list = {Inner{5}, Inner{1}};
  outer.cap = Bytes{7};
  outer.change = Bytes{-7};
  outer.choice = Other{};
  const Json written = json::write(outer);
  const auto read = json::read<Outer>(written, {});
  REQUIRE(json::write(read) == written);
  REQUIRE(written["time_ms"] == 250.0);
  REQUIRE(read.list[0].count == 5);
  REQUIRE(read.choice.get_if<Other>() != nullptr);
}

TEST_CASE("settings that know Fields alone are read, written and described", "[base]") {
  const auto read = [](const std::string& params) {
    return json::read<Outer>(
        json::parse_text(R"({"rate": 1, "kind": "other", "params": )" + params + "}", "x"), {"x", ""});
  };
  const Json plain = json::write(
      read("{}").choice.get_if<Other>() == nullptr ? Other{} : *read("{}").choice.get_if<Other>());
  const std::string text =
      R"({"on":true,"small":-1,"large":5000000000,"seed":9007199254740993,"rate":2.0,)"
      R"("word":"b","time_ms":1.5,"bytes":7,"color":"red","inner":{"count":4},"lists":[[2,3]]})";
  const Outer outer = read(text);
  CHECK(json::write(outer)["params"].dump() == text);
  CHECK(outer.choice.get_if<Other>()->time == Seconds{0.0015});
  CHECK(plain["lists"].dump() == "[[1],[]]");

  const auto refusal = [&](const std::string& params) {
    try {
      (void)read(params);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal(R"({"color":"gren"})") ==
        "x: /params/color: expected one of \"red\", \"green\", found \"gren\"; did you mean \"green\"?");
  CHECK(refusal(R"({"inner":{"count":9}})") ==
        "x: /params/inner/count: expected at least 1 and at most 5, found 9");
  CHECK(refusal(R"({"lists":[]})") == "x: /params/lists: expected a length of at least 1, found []");
  CHECK(refusal(R"({"lists":[1]})") == "x: /params/lists/0: expected an array, found 1");
  CHECK(refusal(R"({"small":7})") == "x: /params/small: small is larger than large");
  CHECK(refusal(R"({"seed":-1})") != "");
  CHECK(refusal(R"({"smal":7})") == "x: /params/smal: unknown key; did you mean \"small\"?");

  const Json schema = json::schema_of<Outer>();
  const Json& other = schema["oneOf"][1]["properties"];
  CHECK(other["kind"]["description"] == "all types");
  CHECK(schema["oneOf"][0]["properties"]["kind"]["description"] == "which");
  CHECK(other["params"]["properties"]["lists"]["items"]["items"]["type"] == "integer");
  CHECK(other["params"]["properties"]["color"].dump() ==
        R"({"enum":["red","green"],"description":"a color","default":"green"})");
}

TEST_CASE("registries: built-in and added types, once each", "[base]") {
  CHECK(Named<Kind>(Inner{4}).make(3) == "7");
  CHECK(Named<Kind>().name() == "inner");
  CHECK(Named<Kind>(Other{}).entry().location_keys == std::vector<std::string>{"word"});
  Registry<Kind> registry([](auto&) {});
  const auto make = [](const auto&, int) { return std::string(); };
  registry.add<Inner>("a", make);
  CHECK_THROWS_AS(registry.add<Other>("a", make), InternalError);
  CHECK_THROWS_AS(registry.add<Inner>("b", make), InternalError);
  CHECK_THROWS_AS(registry.add<Other>("", make), InternalError);
  CHECK_FALSE(registry.names_only());
  CHECK(registry.names() == std::vector<std::string>{"a"});
}

TEST_CASE("what is too long to be shown is cut between characters", "[base]") {
  for (std::size_t before = 0; before < 4; ++before) {
    std::string name(before, 'a');
    for (int i = 0; i < 150; ++i) name += "\u20ac";  // three bytes
    for (const std::string& text :
         {fmt::format(R"({{"rate":1,"kind":"{}"}})", name),
          fmt::format(R"({{"rate":1,"kind":"inner","{}":2}})", name),
          fmt::format(R"({{"rate":1,"{}":1e999}})", name), fmt::format(R"({{"rate":1 "{}"}})", name)}) {
      const std::string said = message_of(text);
      INFO(said);
      CHECK(said.find("...") != std::string::npos);
      CHECK(is_utf8(said));
    }
  }
}

TEST_CASE("bad input names the file, the pointer, the value and the nearest key", "[base]") {
  CHECK(message_of("{").find("x.json: not valid JSON") == 0);
  CHECK(message_of(R"({"kind":"inner"})") == "x.json: the key \"rate\" is missing");
  CHECK(message_of(R"({"kind":"inner","rat":1})") ==
        "x.json: the key \"rate\" is missing; \"rat\" is there, is it a slip?");
  CHECK(message_of(R"({"rate":0,"kind":"inner"})") == "x.json: /rate: expected above 0, found 0");
  CHECK(message_of(R"({"rate":"1","kind":"inner"})") ==
        "x.json: /rate: expected a finite number, found \"1\"");
  CHECK(message_of(R"({"rate":1,"kind":"iner"})") ==
        "x.json: /kind: expected one of \"inner\", \"other\", found \"iner\"; did you mean \"inner\"?");
  CHECK(message_of(R"({"rate":1,"kind":"inner","lst":[]})") ==
        "x.json: /lst: unknown key; did you mean \"list\"?");
  CHECK(message_of(R"({"rate":1,"kind":"inner","list":[{"count":9}]})") ==
        "x.json: /list/0/count: expected at least 1 and at most 5, found 9");
  CHECK(message_of(R"({"rate":1,"kind":"inner","cap_bytes":-9223372036854775808})") ==
        "x.json: /cap_bytes: expected at least 0, found -9223372036854775808");
  CHECK(message_of(R"({"rate":1,"kind":"inner","change_bytes":-10})") ==
        "x.json: /change_bytes: expected at least -9, found -10");
  CHECK(message_of(R"({"rate":1,"kind":"inner","cap_bytes":1})") == "x.json: expected both bytes or none");
  // An integer is what its value is, however it is written.
  CHECK(message_of(R"({"rate":1,"kind":"inner","cap_bytes":8e9})") == "x.json: expected both bytes or none");
  CHECK(message_of(R"({"rate":1,"kind":"inner","cap_bytes":8.5})") ==
        "x.json: /cap_bytes: expected an integer, found 8.5");
  CHECK_THAT(message_of(R"({"rate":1,"kind":"inner","cap_bytes":1e30})"),
             Catch::Matchers::StartsWith("x.json: /cap_bytes: expected at "));
  CHECK(message_of(R"({"rate":1,"kind":"inner","cap_bytes":1,"zzzzzzzz":1})") ==
        "x.json: expected both bytes or none");
  CHECK(message_of(R"({"rate":1,"kind":"inner","cap_bytes":1,"change_byts":1})") ==
        "x.json: /change_byts: unknown key; did you mean \"change_bytes\"?");
  CHECK(message_of(R"({"rate":1,"kind":"inner","params":{"cont":1}})") ==
        "x.json: /params/cont: unknown key; did you mean \"count\"?");
  CHECK(message_of(R"({"rate":1,"rate":2,"kind":"inner"})") ==
        "x.json: /rate: the key \"rate\" appears twice in one object");
  CHECK(message_of(R"({"list":[{"count":1},{"count":1,"count":2}]})") ==
        "x.json: /list/1/count: the key \"count\" appears twice in one object");
  CHECK(message_of(R"({"rate":1e999,"kind":"inner"})") ==
        "x.json: /rate: expected a number below 1.8e308, found 1e999");
  CHECK(message_of(R"({"list":[{"count":[1,-1e400]}]})") ==
        "x.json: /list/0/count/1: expected a number below 1.8e308, found -1e400");
  const std::string long_key(1U << 20U, 'k');
  CHECK(message_of("{\"" + long_key + "\":1,\"" + long_key + "\":1}").size() < 500);
  CHECK(message_of(R"([1])") == "x.json: expected an object, found [1]");
  CHECK(message_of(R"({"rate":1,"kind":"inner",")" + std::string(1U << 20U, 'k') + R"(":1})").size() < 500);
}

TEST_CASE("no table is wider than 120 columns, whatever is in it", "[base]") {
  const auto widest = [](const std::string& text) {
    std::size_t most = 0;
    for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1) {
      end = text.find('\n', at);
      const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; };
      most =
          std::max(most, static_cast<std::size_t>(std::ranges::count_if(text.substr(at, end - at), begins)));
    }
    return most;
  };
  for (const int columns : {2, 9, 13, 40}) {
    for (const std::size_t letters : {3U, 30U, 119U, 700U}) {
      CAPTURE(columns, letters);
      std::vector<std::string> names{"stage", "rank"};
      std::vector<Table::Cell> cells{"17", "3"};
      for (int c = 2; c < columns; ++c)
        names.push_back(fmt::format("figure {}", c)), cells.emplace_back("123.456");
      names.emplace_back("<cuts");
      std::string name;
      for (std::size_t i = 0; i < letters; ++i) name += i % 7 == 3 ? "\u65e5" : "x";
      cells.emplace_back(name + "end");
      Table table(names);
      table.keys(2).row(cells).rule().row(cells);
      const std::string text = table.text();
      CHECK(widest(text) <= Table::kMostColumns);
      CHECK(text.find("end") != std::string::npos);
      // Every block says what its rows are of.
      const auto count = [&](const std::string& word) {
        int found = 0;
        for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++found;
        return found;
      };
      CHECK(count("stage  rank") == count("17"
                                          "     3") /
                                        2);
    }
  }
}

TEST_CASE("a column of long times is in seconds, and says so", "[base]") {
  Table table({"<plan", "step ms", "p95 ms", "idle"});
  table.row({"a", Seconds{10.2163}, Seconds{0.5}, Seconds{12}});
  table.row({"b", Seconds{0.0123}, std::optional<Seconds>(), "-"});
  CHECK(table.text("") ==
        "plan  step s   p95 ms       idle\n"
        "--------------------------------\n"
        "a     10.216  500.000  12000.000\n"
        "b      0.012        -          -\n");
}

TEST_CASE("a hint is for what can be a slip of the finger", "[base]") {
  CHECK(nearest("adamm", {"sgd", "adam"}) == "adam");
  const std::string known(50, 'a');
  CHECK(nearest(known + "b", {known}) == known);
  // A key of megabytes would be compared letter by letter with everything known.
  CHECK(nearest(std::string(1000, 'a'), {std::string(1001, 'a')}).empty());
  CHECK(nearest("aaa", {std::string(1001, 'a')}).empty());
}

TEST_CASE("a hint knows other cases, other names and parts of names", "[base]") {
  const std::vector<std::string> optimizers{"SGD", "SGDW", "Adam", "AdamW", "NAdam", "Lion"};
  CHECK(nearest("adamw", optimizers) == "AdamW");
  CHECK(nearest("adam_w", optimizers) == "AdamW");
  CHECK(nearest("sgd", optimizers) == "SGD");
  CHECK(nearest("ADAM", optimizers) == "Adam");
  CHECK(nearest("FusedAdam", optimizers) == "AdamW");
  CHECK(nearest("gpu", {"cpu", "cuda"}) == "cuda");
  CHECK(nearest("cuda:0", {"cpu", "cuda"}) == "cuda");
  CHECK(nearest("gpipe", {"fill_drain", "1f1b", "pipedream"}) == "fill_drain");
  CHECK(nearest("ZBH1", {"fill_drain", "1f1b", "zb_h1", "zb_h2"}) == "zb_h1");
  CHECK(nearest("interleaved", {"1f1b", "interleaved_1f1b", "interleaved_zb"}) == "interleaved_1f1b");
  const std::vector<std::string> keys{"train_batch_size", "train_micro_batch_size_per_gpu", "train_steps"};
  CHECK(nearest("micro_batch_size", keys) == "train_micro_batch_size_per_gpu");
  CHECK(nearest("batch_size", keys) == "train_batch_size");
  CHECK(nearest("max_steps", keys) == "train_steps");
  // As a reader asks of a key that is missing: which of those that are there was it to be?
  CHECK(nearest("train_micro_batch_size_per_gpu", {"seed", "per_device_train_batch_size"}) ==
        "per_device_train_batch_size");
  CHECK(nearest("zzzz", keys).empty());
  CHECK(nearest("", keys).empty());
  CHECK(nearest("-", {"", "a"}).empty());
}

TEST_CASE("an object of many keys takes no longer than as many keys in small objects", "[base]") {
  const auto seconds_for = [](int objects, int keys) {
    std::string text = "[";
    for (int o = 0; o < objects; ++o) {
      text += o == 0 ? "{" : ",{";
      for (int k = 0; k < keys; ++k) text += (k == 0 ? "\"" : ",\"") + std::to_string(1'000'000 + k) + "\":1";
      text += "}";
    }
    const std::clock_t begin = std::clock();
    CHECK(json::parse_text(text + "]", "x").size() == static_cast<std::size_t>(objects));
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const double small = seconds_for(1000, 100);
  CHECK(seconds_for(10, 10'000) < 10 * small + 0.1);
}

TEST_CASE("files are replaced whole or not at all", "[base]") {
  REQUIRE_THROWS_AS(write_file_atomically("/nonexistent/folder/x", "a"), InputError);
  REQUIRE_THROWS_AS(json::parse_file("/nonexistent/x.json"), InputError);
  REQUIRE_THROWS_AS(json::parse_file("/"), InputError);
}

namespace {

struct Folder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("stagecraft_base." + std::to_string(::getpid()));
  Folder() { std::filesystem::create_directories(path / "below"); }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path / name).string(); }
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("links are written through", "[base]") {
  const Folder folder;
  write_file_atomically(folder.file("below/real"), "old");
  std::filesystem::create_symlink("below/real", folder.file("link"));
  std::filesystem::create_symlink("link", folder.file("second"));
  std::filesystem::create_symlink("below/later", folder.file("ahead"));
  write_file_atomically(folder.file("second"), "new");
  CHECK(contents(folder.file("below/real")) == "new");
  write_file_atomically(folder.file("ahead"), "made");
  CHECK(contents(folder.file("below/later")) == "made");
  for (const char* link : {"link", "second", "ahead"}) {
    CHECK(std::filesystem::is_symlink(folder.file(link)));
  }
  std::filesystem::create_symlink("circle", folder.file("circle"));
  CHECK_THROWS_AS(write_file_atomically(folder.file("circle"), "x"), InputError);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 5);  // nothing is left aside
}

TEST_CASE("what is no file is written to, not replaced", "[base]") {
  const Folder folder;
  const std::string pipe = folder.file("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  write_file_atomically(pipe, "through");
  char text[16] = {};
  CHECK(::read(reader, text, sizeof text) == 7);
  ::close(reader);
  CHECK(std::string(text) == "through");
  CHECK(std::filesystem::is_fifo(pipe));
  CHECK_THROWS_AS(write_file_atomically(folder.file("below"), "x"), InputError);
}

TEST_CASE("control characters are shown, and text stays text", "[base]") {
  CHECK(printable("stage\t0\nlayers: gr\u00fcn \u5c64 \U0001F680\r\n") ==
        "stage\t0\nlayers: gr\u00fcn \u5c64 \U0001F680\r\n");
  CHECK(printable("\x1b]0;owned\x07") == "\\u001b]0;owned\\u0007");
  CHECK(printable("a\rb\b\x7f") == "a\\u000db\\u0008\\u007f");
  CHECK(printable("\u009b2J\u00a0") == "\\u009b2J\u00a0");
  // What is not UTF-8: a stray byte, the long form of ESC, a surrogate, what is cut short, beyond U+10FFFF.
  for (const char* moving : {"\u061c", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202b", "\u202c",
                             "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069"}) {
    CHECK(printable(moving).starts_with("\\u"));
  }
  CHECK(printable("a\u202etxt") == "a\\u202etxt");
  CHECK(printable("\u200b\u2027\u202f\u2065\u206a") == "\u200b\u2027\u202f\u2065\u206a");
  CHECK(printable("n\xff") == "n\\xff");
  CHECK(printable("\xc0\x9b") == "\\xc0\\x9b");
  CHECK(printable("\xe0\x80\x9b") == "\\xe0\\x80\\x9b");
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");
  CHECK(printable("\xe5\xb1") == "\\xe5\\xb1");
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(printable(std::string("\0", 1)) == "\\u0000");
  // JSON that passes through means what it meant.
  const Json json{{"name", "\x1b[2J \u009b \x7f"}};
  const std::string text = printable(json.dump());
  CHECK(text.find_first_of("\x1b\x7f\xc2") == std::string::npos);
  CHECK(Json::parse(text) == json);
}

TEST_CASE("a path that cannot be looked at is the user's, and named", "[base]") {
  const Failure failure = failure_of(std::make_exception_ptr(std::filesystem::filesystem_error(
      "status", "runs/a", std::make_error_code(std::errc::too_many_symbolic_link_levels))));
  CHECK(failure.code == exit_code::kInput);
  CHECK(failure.message == "runs/a: Too many levels of symbolic links");
}

TEST_CASE("a thread that cannot be started is a limit that is too low, said in words", "[base]") {
  const Failure failure = failure_of(std::make_exception_ptr(
      std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))));
  CHECK(failure.code == exit_code::kInput);
  CHECK(failure.message.find("ulimit -u") != std::string::npos);
}

TEST_CASE("tables align", "[base]") {
  Table table({"<name", "ms"});
  table.row({"a", "1.000"}).row({"longer", "10.000"});
  REQUIRE(table.text("") == "name        ms\n--------------\na        1.000\nlonger  10.000\n");
}

}  // namespace stagecraft
