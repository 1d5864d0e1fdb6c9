// What to do where a model was named that is no folder in the Hugging Face format. Used by engine_flags.cc and warmup.
#pragma once

#include <string>

#include "fovea/status.h"

namespace fovea::app {

// The error of loading `model`, with the next step where what was named looks like an id of the Hugging Face Hub, a
// GGUF file, a folder of pickled weights or one whose tokenizer is a SentencePiece file.
Status with_model_hint(const Status& error, const std::string& model);

}  // namespace fovea::app
