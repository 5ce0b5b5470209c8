#include "engine/transport/c10d/message.h"

#include "base/error.h"

#include <cstring>

namespace stagecraft::transport {
namespace {

struct Head {
  Message::Kind kind;
  bool texts;
  std::int32_t transport;
  std::uint32_t number;
  std::int64_t bytes;
  Tag tag;
};

}  // namespace

std::string to_bytes(const Message& message) {
  const Head head{message.kind, message.texts, message.transport, message.number, message.bytes, message.tag};
  std::string bytes(sizeof head, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  return bytes + message.text;
}

Message message_from(const std::string& bytes) {
  Head head{};
  STAGECRAFT_CHECK(bytes.size() >= sizeof head, "a message of another program came in");
  std::memcpy(&head, bytes.data(), sizeof head);
  return {head.kind,  head.texts, head.transport,           head.number,
          head.bytes, head.tag,   bytes.substr(sizeof head)};
}

}  // namespace stagecraft::transport
