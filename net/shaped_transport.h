// A transport behind an emulated link. Internal to net/.
#pragma once

#include "net/context.h"
#include "net/shaper.h"
#include "net/transport.h"

namespace weft::net {

TransportPtr make_shaped_transport(std::shared_ptr<Context> context, TransportPtr inner, const Shape& shape);

}  // namespace weft::net
