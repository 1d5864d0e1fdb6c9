// ProcessEngine: an Engine that knows the process it was made in. A child of fork() has its memory but none of its
// threads, and locks that these may have held: what would wait for them is refused there. Made by Engine::create.
#pragma once

#include <memory>

#include "fovea/engine.h"

namespace fovea {

std::unique_ptr<Engine> make_process_engine(std::unique_ptr<Engine> engine);

}  // namespace fovea
