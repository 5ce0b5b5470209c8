#include "base/fingerprint.h"

#include "test/support/catch.h"

#include <string>

namespace stagecraft {

TEST_CASE("fingerprints are XXH3's, in however many pieces the bytes come", "[fingerprint]") {
  CHECK(fingerprint("") == "2d06800538d394c2");  // of XXH3's own tests
  CHECK(Fingerprint().text() == fingerprint(""));
  std::string bytes;
  for (int i = 0; i < 3000; ++i) bytes += static_cast<char>(i * i % 251);
  for (const std::size_t piece : {1U, 7U, 64U, 255U, 256U, 257U, 1024U, 2999U}) {
    Fingerprint print;
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      print.add(std::string_view(bytes).substr(at, piece));
    CHECK(print.text() == fingerprint(bytes));
    CHECK(print.text() == fingerprint(bytes));
  }
  for (const std::size_t at : {0U, 1500U, 2999U}) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ 1);
    CHECK(fingerprint(other) != fingerprint(bytes));
  }
}

}  // namespace stagecraft
