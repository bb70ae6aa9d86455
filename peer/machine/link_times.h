// How long a link waits for what.
#pragma once

#include <chrono>

#include "base/units.h"

namespace weft::peer {

struct LinkTimes {
  // For each address in turn, and the relay. A link that was up has less, so that each address has two turns
  // before the link has failed: the first may meet the other side's pause, or a broker that is not back yet.
  Duration address_deadline = std::chrono::seconds(5);
  Duration ready_deadline = std::chrono::seconds(30);  // for a link to be up the first time
  Duration heal_deadline = std::chrono::seconds(10);   // for a link that went down to be up again
  // The same between replicas with local steps, which need it now and then: from when there is something to
  // be sent. A stage that fails by it costs the round; the broker says sooner whose replica is late, or lost,
  // and the others go on without that.
  Duration heal_deadline_of_replicas = std::chrono::seconds(60);
  Duration silence_deadline = std::chrono::seconds(10);  // a connection over which nothing came is given up
  Duration ack_interval = std::chrono::seconds(1);       // signs of life
  Duration retry_delay_max = std::chrono::seconds(1);
  Duration far = std::chrono::milliseconds(5);  // the round trip from which further connections are of use
};

}  // namespace weft::peer
