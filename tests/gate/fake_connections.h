// The connections of a gate without sockets: what desks send to whom. A queue is as long as the test says.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "broker/service/desk.h"

namespace weft::broker::test_desks {

inline constexpr size_t kKiB = 1 << 10, kMiB = 1 << 20;
inline constexpr Instant kThen{std::chrono::hours(100)};

class FakeConnections : public Connections {
 public:
  size_t bytes_queued(ConnectionId to) const override { return queued.contains(to) ? queued.at(to) : 0; }
  void send(ConnectionId to, const proto::Message& message) override { sent[to].push_back(message); }
  void send_frame(ConnectionId to, net::OutFrame frame) override { frames[to].push_back(std::move(frame)); }
  void refuse(ConnectionId which, const Error& why) override {
    refused[which] = why;
    if (on_refused) on_refused(which);
  }

  // All that it was sent since the last call, of this kind; what else there was is lost.
  template <typename T>
  std::vector<T> take(ConnectionId to) {
    std::vector<T> taken;
    for (const proto::Message& message : std::exchange(sent[to], {}))
      if (const T* wanted = std::get_if<T>(&message)) taken.push_back(*wanted);
    return taken;
  }

  std::map<ConnectionId, size_t> queued;
  std::map<ConnectionId, std::vector<proto::Message>> sent;
  std::map<ConnectionId, std::vector<net::OutFrame>> frames;
  std::map<ConnectionId, Error> refused;
  std::function<void(ConnectionId)> on_refused;  // as a gate does: the desk is told of the end
};

}  // namespace weft::broker::test_desks
