"""Streams the words of text_input, one response per word, each with a space before it."""

from collections.abc import AsyncIterator

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Words(MLModel):
    async def load(self) -> bool:
        return True

    async def predict_stream(self, payloads: AsyncIterator[InferenceRequest]) -> AsyncIterator[InferenceResponse]:
        async for payload in payloads:
            for word in StringCodec.decode_input(payload.inputs[0])[0].split():
                output = StringCodec.encode_output("text_output", [f" {word}"])
                yield InferenceResponse(model_name=self.name, id=payload.id, outputs=[output])
